package config_test

import (
	"slices"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestLenient(t *testing.T) {
	c := mustParse(t, `
listeners: {web: {address: ":80", protocol: http, lenient: [raw_targets, bare_lf, equal_lengths, control_characters]}}
routes: [{listeners: [web], backend: a}, {listeners: [web], hosts: [b], backend: b}]
backends:
  a: {endpoints: ["a:1"], lenient: [length_with_chunked, bare_lf, chunked_http10, folded_lines]}
  b: {endpoints: ["a:1"], protocol: https, lenient: [bare_lf, twice_chunked, identity_encoding, control_characters], max_interim_responses: 200}
`)
	if want := []config.Leniency{config.RawTargets, config.BareLF, config.EqualLengths, config.ControlCharacters}; !slices.Equal(c.Listeners[0].Lenient, want) {
		t.Errorf("%q", c.Listeners[0].Lenient)
	}
	if c.Backends[0].MaxInterim != 16 || c.Backends[1].MaxInterim != 200 {
		t.Errorf("%d and %d interim responses", c.Backends[0].MaxInterim, c.Backends[1].MaxInterim)
	}
	if want := []config.Leniency{config.LengthWithChunked, config.BareLF, config.ChunkedHTTP10, config.FoldedLines}; !slices.Equal(c.Backends[0].Lenient, want) {
		t.Errorf("%q", c.Backends[0].Lenient)
	}
	if want := []config.Leniency{config.BareLF, config.TwiceChunked, config.IdentityEncoding, config.ControlCharacters}; !slices.Equal(c.Backends[1].Lenient, want) {
		t.Errorf("%q", c.Backends[1].Lenient)
	}
	reloads(t, c)
	if c := mustParse(t, small); c.Backends[0].Lenient != nil || c.Listeners[0].Lenient != nil {
		t.Errorf("by default %q", c.Backends[0].Lenient)
	}
}
