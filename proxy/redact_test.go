package proxy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
)

func TestRedaction(t *testing.T) {
	d := NewRedaction([]string{"token", "Code", "api key", "a+b"})
	f := func(url, want string) {
		t.Helper()
		if got := string(d.apply([]byte(url))); got != want {
			t.Errorf("%q is logged as %q, not %q", url, got, want)
		}
	}
	for _, same := range []string{"", "/", "/?", "/token=a", "/x?tok=a&tokens=b&xtoken=c", "/?token", "/?a=token&b=code", "/?&&==&token", "*", "/?%=a&%t=b&%74%=c",
		"/?" + strings.Repeat("t", 1000) + "=a", "/?to+ken=a&token+x=b&+=c&=d&token%2=e"} {
		f(same, same)
	}
	f("/cb?token=secret", "/cb?token=***")
	f("/cb?token=", "/cb?token=***")
	f("/cb?a=1&code=x&b=2", "/cb?a=1&code=***&b=2")
	f("/cb?code=x&token=y", "/cb?code=***&token=***")
	f("/cb?code=x&code=y&", "/cb?code=***&code=***&")
	f("/cb?TOKEN=x", "/cb?TOKEN=***")
	f("/cb?t%6fke%6E=x", "/cb?t%6fke%6E=***")
	f("/cb?%74oken=x&+token=y&++tok%65n=z", "/cb?%74oken=***&+token=***&++tok%65n=***")
	f("/cb?token+=x&%20token%20=y&%2btoken=z", "/cb?token+=***&%20token%20=***&%2btoken=***")
	f("/cb?api+key=x&API%20Key=y&+api+key++++++=z", "/cb?api+key=***&API%20Key=***&+api+key++++++=***")
	f("/cb?a+b=x&a%2Bb=y&a%20b=z", "/cb?a+b=***&a%2Bb=***&a%20b=***")
	f("/cb?a=1;token=x;b=2&c=3", "/cb?a=1;token=***&c=3")
	f("/cb?token=a;b?c=d=e&f", "/cb?token=***&f")
	f("https://a.example/cb?token=x#y", "https://a.example/cb?token=***")
	if got := NewRedaction(nil).apply([]byte("/?token=x")); string(got) != "/?token=x" {
		t.Errorf("nothing is to be hidden, and %q is logged", got)
	}
	plain := []byte("/a?b=c&d=e")
	if n := testing.AllocsPerRun(100, func() { d.apply(plain) }); n != 0 {
		t.Errorf("a URL without secrets takes %v allocations", n)
	}
}

// The log line hides the values in the target and in Referer.
func TestRedactedLine(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	r.proxy.SetLog(func(rec *Record) {
		rec.Redaction = NewRedaction([]string{"token"})
		r.records <- fieldsOf(rec.Fields())
	})
	c := r.dial("web")
	c.write("GET /x?token=a HTTP/1.1\r\nHost: a\r\nReferer: http://a/?b=c&token=d\r\n\r\n")
	c.response("GET")
	r.record().want(t, "target", "/x?token=***", "referer", "http://a/?b=c&token=***")
}

func TestClientFields(t *testing.T) {
	f := func(client, address string, port any) {
		t.Helper()
		a := netip.MustParseAddrPort(client)
		e := entry(fieldsOf(appendOrigin(nil, &conn.Origin{Header: new(header.Header), Client: a}, a)))
		e.want(t, "client", client, "client_address", address, "client_port", port)
		e = entry(fieldsOf(RefusedFields(a, a, "web", "late", nil)))
		e.want(t, "client", client, "client_address", address, "client_port", port)
	}
	f("192.0.2.1:4711", "192.0.2.1", 4711)
	f("[2001:db8::1]:4711", "2001:db8::1", 4711)
	f("[::ffff:192.0.2.1]:4711", "::ffff:192.0.2.1", 4711)
	f("192.0.2.1:0", "192.0.2.1", nil)
	for _, text := range []string{"192.0.2.1", "2001:db8::1"} { // without a port, as in X-Forwarded-For
		a := netip.AddrPortFrom(netip.MustParseAddr(text), 0)
		e := entry(fieldsOf(appendOrigin(nil, &conn.Origin{Header: new(header.Header), Client: netip.MustParseAddrPort("192.0.2.9:1")}, a)))
		e.want(t, "client", text, "client_address", text, "client_port", nil, "sender", "192.0.2.9:1")
	}
}
