package filter

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// expand returns the text of a template for a request.
func expand(text config.Template, x *exchange) string {
	var h message.Head
	t := newTemplate(text)
	return string(h.Bytes(t.store(&h, x)))
}

func TestTemplates(t *testing.T) {
	x := newExchange("GET", "/a")
	x.req.Reset()
	x.req.SetMethod(x.req.StoreString("PUT"))
	if err := x.req.SetTarget(x.req.StoreString("/a/b?c=d?e")); err != nil {
		t.Fatal(err)
	}
	x.req.Host = x.req.StoreString("App.Example.org.:8080")
	x.client = netip.MustParseAddrPort("192.0.2.1:5000")
	f := func(text config.Template, want string) {
		t.Helper()
		if got := expand(text, x); got != want {
			t.Errorf("%q becomes %q, not %q", text, got, want)
		}
	}
	f("plain", "plain")
	f("{client}", "192.0.2.1")
	f("{scheme}://{host}{uri}", "http://app.example.org/a/b?c=d?e")
	f("<{path}|{query}|{method}>", "</a/b|c=d?e|PUT>")
	f("{{client}", "{client}")
	f("{{{method}}}", "{PUT}}")
	f("a } b", "a } b")
	x.secure = true
	f("{scheme}", "https")
	x.req.SetTarget(x.req.StoreString("/"))
	f("{uri}|{query}|", "/||")
	x.req.Host = x.req.StoreString("[2001:DB8::1]:80")
	x.client = netip.MustParseAddrPort("[2001:db8::2%eth0]:5000")
	f("{host} {client}", "[2001:db8::1] 2001:db8::2")
	x.client = netip.AddrPort{}
	f("{client}", "unknown")

	id := expand("{request_id}", x)
	if len(id) != 32 || expand("{request_id}", x) != id || string(x.req.Get(message.XRequestID)) != id {
		t.Errorf("the ids are %q, then %q, and %q in the request", id, expand("{request_id}", x), x.req.Get(message.XRequestID))
	}
	for _, trusts := range []Trust{0, TrustSender} {
		x = newExchange("GET", "/a")
		x.trusts = trusts
		x.req.AddField("X-Request-Id", "theirs")
		if id := expand("{request_id}", x); (id == "theirs") != (trusts != 0) {
			t.Errorf("the id is %q with trust %d", id, trusts)
		}
	}
	x = newExchange("OPTIONS", "*")
	f("{uri} {path} {query}", "* * ")
}

// Whatever a client sends, a template gives one value of one header.
func FuzzTemplate(f *testing.F) {
	f.Add("/a?b", "app.example.org:80", "192.0.2.1:5", "id")
	f.Add("//evil.example/%0d%0aX:%20y", "[::1]", "[::1]:5", "a\tb")
	f.Add("/{host}?{{", "a.", "", "")
	f.Fuzz(func(t *testing.T, target, host, client, id string) {
		x := newExchange("GET", "/")
		x.trusts = TrustSender
		x.req.Host = x.req.StoreString(host)
		if x.req.SetTarget(x.req.StoreString(target)) != nil || !message.ValidHost([]byte(host)) || !message.ValidValue([]byte(id)) {
			return // a codec refuses the request
		}
		x.req.AddField("X-Request-Id", id)
		x.client, _ = netip.ParseAddrPort(client)
		got := expand("{client}|{scheme}|{host}|{uri}|{path}|{query}|{method}|{request_id}", x)
		if strings.ContainsFunc(got, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			t.Errorf("%q has a control character", got)
		}
		parts := []string{expand("{client}", x), expand("{scheme}", x), expand("{host}", x), target, expand("{path}", x), expand("{query}", x), "GET", id}
		if want := strings.Join(parts, "|"); got != want || slices.Contains(parts[:3], "") && host != "" && host != "." {
			t.Errorf("%q, not %q", got, want)
		}
	})
}
