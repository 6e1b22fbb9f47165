package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is an unprivileged user without a name. Pods of the chart use the same.
const user = "65532:65532"

// image writes an image for each architecture, and the index of both, as an OCI layout.
func (b *builder) image(ctx context.Context) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range linux {
		built, err := b.binary(ctx, weir, t)
		if err != nil {
			return err
		}
		image, err := b.imageOf(built)
		if err != nil {
			return fmt.Errorf("cannot make the image for %s: %w", t.arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: t.os, Architecture: t.arch}}})
	}
	index = mutate.Annotations(index, b.labels()).(v1.ImageIndex)
	return b.layout("image", func(l layout.Path) error {
		return l.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": b.version}))
	})
}

// layout writes an OCI layout to a folder, which may contain an older one.
func (b *builder) layout(name string, fill func(layout.Path) error) error {
	folder := filepath.Join(b.out, name)
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	l, err := layout.Write(folder, empty.Index)
	if err == nil {
		err = fill(l)
	}
	if err != nil {
		return fmt.Errorf("cannot write the OCI layout %s: %w", folder, err)
	}
	return nil
}

// labels are the labels of images that tools read; annotations have the same names.
func (b *builder) labels() map[string]string {
	const label = "org.opencontainers.image."
	return map[string]string{
		label + "title": "weir", label + "description": "A TCP, TLS and HTTP reverse proxy that never loses the client's address",
		label + "version": b.version, label + "revision": b.commit, label + "created": b.time.Format("2006-01-02T15:04:05Z"),
		label + "licenses": "Apache-2.0", label + "url": home, label + "source": home, label + "documentation": home + "/blob/main/README.md",
	}
}

const home = "https://github.com/weirproxy/weir"

// imageOf returns an image with the binary, the CA certificates for https backends and ACME
// directories, and licences. The certificates do not depend on this machine: go.sum has
// their hash.
func (b *builder) imageOf(weir *binary) (v1.Image, error) {
	licence, err := b.read("LICENSE")
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range []struct {
		what  string
		files []entry
	}{
		{"CA certificates of Mozilla", []entry{{"etc/ssl/certs/ca-certificates.crt", 0o644, authorities()}}},
		{"weir", []entry{{"usr/bin/weir", 0o755, weir.data}, {"usr/share/doc/weir/LICENSE", 0o644, licence}, {"usr/share/doc/weir/LICENSES-OF-MODULES", 0o644, weir.licences}}},
	} {
		layer, err := b.layer(l.files)
		if err != nil {
			return nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: b.time}, CreatedBy: "release: " + l.what}})
		if err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = weir.os, weir.arch, v1.Time{Time: b.time}
	config.Config = v1.Config{User: user, Entrypoint: []string{"/usr/bin/weir"}, Cmd: []string{"run", "-c", "/etc/weir/weir.yaml"},
		ExposedPorts: map[string]struct{}{"8086/tcp": {}}, Labels: b.labels()}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, b.labels()).(v1.Image), nil
}

func (b *builder) layer(files []entry) (v1.Layer, error) {
	data, err := tarOf("", files, b.time)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression))
}

// authorities returns the root certificates that Mozilla trusts, in PEM. PEM cannot express
// the constraints that Mozilla applies to some of them, and neither can the files of
// distributions.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
	}
	return out.Bytes()
}
