package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// The media types of charts in registries.
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// chart writes the chart as a file for helm, and as an OCI layout.
func (b *builder) chart(context.Context) error {
	content, metadata, err := b.packChart()
	if err != nil {
		return fmt.Errorf("cannot pack the chart: %w", err)
	}
	if err := b.write("weir-"+b.version+".tgz", content); err != nil {
		return err
	}
	image, err := b.chartArtifact(content, metadata)
	if err != nil {
		return fmt.Errorf("cannot make the chart's OCI artifact: %w", err)
	}
	return b.layout("chart", func(l layout.Path) error {
		return l.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": b.version}))
	})
}

// packChart makes the same archive as helm package: the files of the chart in a folder with
// its name, and the version of this release. metadata is Chart.yaml as JSON.
func (b *builder) packChart() (content, metadata []byte, err error) {
	const folder = "deploy/helm/weir/"
	var files []entry
	for _, name := range b.files {
		below, ok := strings.CutPrefix(name, folder)
		if !ok {
			continue
		}
		data, err := b.read(name)
		if err != nil {
			return nil, nil, err
		}
		if name == chartFile {
			data = versionLine.ReplaceAll(data, []byte("version: "+b.version))
			data = appLine.ReplaceAll(data, fmt.Appendf(nil, "appVersion: %q", b.version))
			if metadata, err = yaml.YAMLToJSON(data); err != nil {
				return nil, nil, err
			}
		}
		files = append(files, entry{"weir/" + below, 0o644, data})
	}
	content, err = packed("", files, b.time)
	return content, metadata, err
}

// artifact is an image for registries: a manifest, its config and one layer.
type artifact struct {
	manifest, config []byte
	layer            v1.Layer
}

func (b *builder) chartArtifact(content, metadata []byte) (v1.Image, error) {
	a := &artifact{config: metadata, layer: static.NewLayer(content, chartContent)}
	config, err := partial.Descriptor(static.NewLayer(metadata, chartConfig))
	if err != nil {
		return nil, err
	}
	layer, err := partial.Descriptor(a.layer)
	if err != nil {
		return nil, err
	}
	const label = "org.opencontainers.image."
	labels := b.labels()
	var about struct{ Name, Description string }
	if err := json.Unmarshal(metadata, &about); err != nil {
		return nil, err
	}
	labels[label+"title"], labels[label+"description"] = about.Name, about.Description
	a.manifest, err = json.Marshal(v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: *config, Layers: []v1.Descriptor{*layer}, Annotations: labels})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(a)
}

// The methods of partial.CompressedImageCore.

func (a *artifact) RawManifest() ([]byte, error)      { return a.manifest, nil }
func (a *artifact) RawConfigFile() ([]byte, error)    { return a.config, nil }
func (*artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

func (a *artifact) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if own, err := a.layer.Digest(); err != nil || own != h {
		return nil, fmt.Errorf("the chart has no layer %s", h)
	}
	return a.layer, nil
}
