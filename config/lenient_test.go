package config_test

import (
	"slices"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestLenient(t *testing.T) {
	c := mustParse(t, `
listeners: {web: {address: ":80", protocol: http}}
routes: [{listeners: [web], backend: a}, {listeners: [web], hosts: [b], backend: b}]
backends:
  a: {endpoints: ["a:1"], lenient: [length_with_chunked, bare_lf, chunked_http10, folded_lines]}
  b: {endpoints: ["a:1"], protocol: https, lenient: [bare_lf]}
`)
	if want := []config.Leniency{config.LengthWithChunked, config.BareLF, config.ChunkedHTTP10, config.FoldedLines}; !slices.Equal(c.Backends[0].Lenient, want) {
		t.Errorf("%q", c.Backends[0].Lenient)
	}
	if want := []config.Leniency{config.BareLF}; !slices.Equal(c.Backends[1].Lenient, want) {
		t.Errorf("%q", c.Backends[1].Lenient)
	}
	reloads(t, c)
	if c := mustParse(t, small); c.Backends[0].Lenient != nil {
		t.Errorf("by default %q", c.Backends[0].Lenient)
	}
}
