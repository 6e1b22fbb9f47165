package filter

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// lines returns the headers that are sent.
func lines(h *message.Head) (all []string) {
	for i := range h.Fields {
		if !h.Fields[i].Dropped {
			all = append(all, string(h.Name(i))+": "+string(h.Value(i)))
		}
	}
	return all
}

func addLines(h *message.Head, pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		h.AddField(pairs[i], pairs[i+1])
	}
}

func TestRequestEdits(t *testing.T) {
	f := func(edits config.HeaderEdits, came []string, want ...string) {
		t.Helper()
		x := newExchange("GET", "/a")
		addLines(&x.req.Head, came...)
		c := Compile(&config.Route{Backend: "b", Request: &edits}, nil)
		if c.EditRequest(x); !slices.Equal(lines(&x.req.Head), want) {
			t.Errorf("%+v makes\n%q\nnot\n%q", edits, lines(&x.req.Head), want)
		}
	}
	set := func(name string, value config.Template) []config.HeaderValue {
		return []config.HeaderValue{{Name: name, Value: value}}
	}
	f(config.HeaderEdits{Remove: []string{"X-Debug"}}, []string{"x-debug", "1", "X-Debug", "2", "X_Debug", "3", "X-Debugger", "4"}, "X-Debugger: 4")
	f(config.HeaderEdits{Remove: []string{"X-Internal-*"}}, []string{"X-Internal-A", "1", "x_INTERNAL_b", "2", "X-Internal", "3", "X-Other", "4"}, "X-Internal: 3", "X-Other: 4")
	f(config.HeaderEdits{Set: set("X-Tenant", "blue")}, nil, "X-Tenant: blue")
	f(config.HeaderEdits{Set: set("X-Tenant", "blue")}, []string{"x-tenant", "red", "X_Tenant", "red", "A", "b"}, "A: b", "X-Tenant: blue")
	f(config.HeaderEdits{Add: set("X-Via", "weir")}, []string{"X-Via", "a"}, "X-Via: a", "X-Via: weir")
	// The order is remove, set, add. So a route may set a header that it removes, and add a second one of that name.
	f(config.HeaderEdits{Remove: []string{"A", "B*"}, Set: set("A", "{method}"), Add: append(set("A", "2"), set("B", "{path}")...)},
		[]string{"A", "0", "B", "0"}, "A: GET", "A: 2", "B: /a")
	// A star stands for no header that weir writes, nor for framing.
	f(config.HeaderEdits{Remove: []string{"X-*", "C*"}}, []string{"X-Forwarded-For", "192.0.2.1", "X-Real-IP", "192.0.2.1", "X-Request-Id", "i", "CDN-Loop", "weir", "Content-Length", "5", "X-A", "b", "Cookie", "c"},
		"X-Forwarded-For: 192.0.2.1", "X-Real-IP: 192.0.2.1", "X-Request-Id: i", "CDN-Loop: weir", "Content-Length: 5")

	var trailers message.Head
	addLines(&trailers, "X-Internal-A", "1", "X-Tenant", "2", "X-Sum", "3")
	Compile(&config.Route{Backend: "b", Request: &config.HeaderEdits{Remove: []string{"X-Internal-*"}, Set: set("X-Tenant", "blue")}}, nil).EditTrailers(&trailers)
	if got := lines(&trailers); !slices.Equal(got, []string{"X-Sum: 3"}) {
		t.Errorf("the trailers are %q", got)
	}
}

func TestResponseEdits(t *testing.T) {
	f := func(edits config.HeaderEdits, came []string, want ...string) {
		t.Helper()
		x := newExchange("GET", "/a")
		addLines(&x.res.Head, came...)
		c := Compile(&config.Route{Backend: "b", Response: &edits, HSTS: &config.HSTS{}}, nil)
		if c.EditResponse(x, &x.res); !slices.Equal(lines(&x.res.Head), want) {
			t.Errorf("%+v makes\n%q\nnot\n%q", edits, lines(&x.res.Head), want)
		}
	}
	set := func(name string, value config.Template) []config.HeaderValue {
		return []config.HeaderValue{{Name: name, Value: value}}
	}
	f(config.HeaderEdits{Remove: []string{"Server", "X-Powered-*"}}, []string{"server", "a", "X-Powered-By", "b", "X_Powered_By", "c", "X-Power", "d"}, "X_Powered_By: c", "X-Power: d")
	f(config.HeaderEdits{Remove: []string{"Content-*"}}, []string{"Content-Length", "5", "Content-Language", "de", "Con", "a"}, "Content-Length: 5", "Con: a")
	f(config.HeaderEdits{Set: set("X-Frame-Options", "DENY"), Add: set("Vary", "Accept")}, []string{"x-frame-options", "ALLOW", "Vary", "Cookie"},
		"Vary: Cookie", "X-Frame-Options: DENY", "Vary: Accept")
}

func TestEditsAllocateNothing(t *testing.T) {
	set := []config.HeaderValue{{Name: "X-Tenant", Value: "blue"}, {Name: "X-Url", Value: "{scheme}://{host}{uri}"}, {Name: "X-Client", Value: "{client}"}, {Name: "X-Id", Value: "{request_id}{method}{path}{query}"}}
	edits := &config.HeaderEdits{Remove: []string{"X-Debug", "X-Internal-*"}, Set: set, Add: []config.HeaderValue{{Name: "X-Via", Value: "weir"}}}
	c := Compile(&config.Route{Backend: "b", Request: edits, Response: edits}, nil)
	x := newExchange("GET", "/a")
	x.client = netip.MustParseAddrPort("192.0.2.1:5000")
	n := testing.AllocsPerRun(100, func() {
		x.req.Reset()
		x.res.Reset()
		x.identified = false
		x.req.Method, x.req.Target, x.req.Host = x.req.StoreString("GET"), x.req.StoreString("/a?b"), x.req.StoreString("App.example.org:80")
		x.req.Path = x.req.Target
		x.req.AddField("X-Internal-A", "1")
		x.res.AddField("X-Debug", "1")
		c.EditRequest(x)
		c.EditResponse(x, &x.res)
	})
	if n != 0 {
		t.Errorf("edits allocate %v times", n)
	}
}
