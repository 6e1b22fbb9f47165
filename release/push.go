package main

import (
	"context"
	"fmt"
	"io"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push sends an OCI layout to a registry, with the credentials of docker login or helm
// registry login, and reports its digest.
func push(ctx context.Context, folder, as string, report io.Writer) error {
	index, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return fmt.Errorf("cannot read the OCI layout %s: %w", folder, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return fmt.Errorf("cannot read the OCI layout %s: %w", folder, err)
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("%s has %d manifests, and one can be pushed: build it again", folder, len(manifest.Manifests))
	}
	one := manifest.Manifests[0]
	ref, err := name.ParseReference(as, name.WithDefaultTag(one.Annotations["org.opencontainers.image.ref.name"]))
	if err != nil {
		return fmt.Errorf("cannot push as %q: %w", as, err)
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if one.MediaType.IsIndex() {
		var below v1.ImageIndex
		if below, err = index.ImageIndex(one.Digest); err == nil {
			err = remote.WriteIndex(ref, below, options...)
		}
	} else {
		var image v1.Image
		if image, err = index.Image(one.Digest); err == nil {
			err = remote.Write(ref, image, options...)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot push %s as %s: %w", folder, ref, err)
	}
	_, err = fmt.Fprintf(report, "%s@%s\n", ref.Name(), one.Digest)
	return err
}
