package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom lists the modules in a binary, as Go recorded them, as CycloneDX JSON.
func (b *builder) sbom(of *binary) ([]byte, error) {
	sum := sha256.Sum256(of.data)
	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuid(sum[:])
	main := component(cdx.ComponentTypeApplication, of.info.Main.Path, b.tag())
	main.Name, main.Description = of.name, of.description+", for "+of.os+"/"+of.arch
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}}
	main.Licenses = &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}
	main.Properties = &[]cdx.Property{{Name: "revision", Value: b.commit}}
	bom.Metadata = &cdx.Metadata{Timestamp: b.time.Format("2006-01-02T15:04:05Z"), Component: &main}
	components := []cdx.Component{component(cdx.ComponentTypeLibrary, "std", strings.TrimPrefix(of.info.GoVersion, "go"))}
	for _, m := range of.info.Deps {
		components = append(components, componentOf(m))
	}
	bom.Components = &components
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		return nil, fmt.Errorf("cannot write the SBOM for %s/%s: %w", of.os, of.arch, err)
	}
	return out.Bytes(), nil
}

// componentOf describes a linked module, or its replacement.
func componentOf(m *debug.Module) cdx.Component {
	if m.Replace != nil {
		m = m.Replace
	}
	c := component(cdx.ComponentTypeLibrary, m.Path, m.Version)
	if m.Sum != "" { // the hash from go.sum
		c.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
	}
	return c
}

func component(kind cdx.ComponentType, module, version string) cdx.Component {
	purl := "pkg:golang/" + module + "@" + strings.ReplaceAll(version, "+", "%2B")
	return cdx.Component{Type: kind, BOMRef: purl, Name: module, Version: version, PackageURL: purl}
}

// uuid makes a UUID of version 8 out of a hash, so that it is the same for the same bytes.
func uuid(sum []byte) string {
	var u [16]byte
	copy(u[:], sum)
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
