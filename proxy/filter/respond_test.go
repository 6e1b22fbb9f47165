package filter

import (
	"slices"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestRespond(t *testing.T) {
	f := func(c config.Respond, answer string, want ...string) {
		t.Helper()
		x := newExchange("GET", "/a")
		addLines(&x.res.Head, "Content-Type", "text/plain; charset=utf-8", "X-Content-Type-Options", "nosniff") // as Begin does
		if !Compile(&config.Route{Respond: &c}, nil).Answer(x) || x.answer != answer || !slices.Equal(lines(&x.res.Head), want) {
			t.Errorf("%+v answers %q with %q", c, x.answer, lines(&x.res.Head))
		}
	}
	f(config.Respond{Status: 503, Body: "back {soon}\n", Type: "text/html", Headers: []config.HeaderValue{{Name: "Retry-After", Value: "120"}, {Name: "X-Path", Value: "{path}"}}},
		"503 respond back {soon}", "X-Content-Type-Options: nosniff", "Content-Type: text/html", "Retry-After: 120", "X-Path: /a")
	f(config.Respond{Status: 200, Type: "text/plain"}, "200 respond ", "X-Content-Type-Options: nosniff", "Content-Type: text/plain")
	f(config.Respond{Status: 204, Type: "text/plain", Headers: []config.HeaderValue{{Name: "A", Value: "b"}}}, "204 respond ", "A: b")
}
