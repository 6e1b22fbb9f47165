package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
)

// prefixes parses networks.
func prefixes(networks ...string) (all []netip.Prefix) {
	for _, n := range networks {
		all = append(all, netip.MustParsePrefix(n))
	}
	return all
}

// proxies are the trusted networks of these tests.
var proxies = prefixes("10.0.0.0/8", "2001:db8:1::/48", "fe80::/10")

// sentBy makes an exchange from sender, with these X-Forwarded-For fields.
func sentBy(sender string, lists ...string) *exchange {
	e := &edge{forwarding: filter.NewForwarding(&config.Listener{TrustForwarded: proxies, Trust: []config.Trust{config.TrustFor, config.TrustProto},
		DropHeaders: []string{"X-User"}, KeepHeaders: []string{"Proxy"}})}
	x := &exchange{progress: progress{route: new(Route)}, clientSide: clientSide{edge: e, origin: &conn.Origin{Header: new(header.Header), Client: netip.MustParseAddrPort(sender),
		Local: netip.MustParseAddrPort("203.0.113.1:443")}}}
	x.trusts, x.route = e.forwarding.Believes(x.origin.Client.Addr()), new(Route)
	for _, list := range lists {
		x.req.AddField("X-Forwarded-For", list)
	}
	return x
}

func (x *exchange) findClient() netip.AddrPort {
	return x.edge.forwarding.FindClient(&x.req, x.origin.Client, x.trusts)
}

const maxHops = 32 // of package filter

// addressText omits an unknown port.
func addressText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

func TestClientOfARequest(t *testing.T) {
	f := func(sender, want string, lists ...string) {
		t.Helper()
		if got := sentBy(sender, lists...).findClient(); addressText(got) != want {
			t.Errorf("%q from %s is of %s, not %s", lists, sender, addressText(got), want)
		}
	}
	const cdn = "10.0.0.1:5"
	f(cdn, cdn)
	f(cdn, "192.0.2.1", "192.0.2.1")
	f(cdn, "192.0.2.1:5678", "192.0.2.1:5678")
	f(cdn, "[2001:db8::1]:80", "[2001:db8::1]:80")
	f(cdn, "2001:db8::1", "[2001:db8::1]")
	f(cdn, "192.0.2.1", "::ffff:192.0.2.1")
	// weir ignores the header of a sender that is not trusted.
	f("192.0.2.9:5", "192.0.2.9:5", "6.6.6.6")
	// The client is the rightmost address that is not trusted. The client itself may have written the
	// addresses before it.
	f(cdn, "192.0.2.2", "6.6.6.6, 192.0.2.2")
	f(cdn, "192.0.2.2", "6.6.6.6, 192.0.2.2, 10.0.0.2,2001:db8:1::7")
	f(cdn, "192.0.2.2", "6.6.6.6,192.0.2.2 ,\t10.0.0.2:80, ::ffff:10.0.0.3")
	f(cdn, "192.0.2.2", "fe80::1, 192.0.2.2, fe80::1%eth0")
	// Several fields form one list.
	f(cdn, "192.0.2.2", "6.6.6.6", "192.0.2.2")
	f(cdn, "192.0.2.2", "6.6.6.6, 192.0.2.2", "10.0.0.2", "10.0.0.3, 10.0.0.4")
	// If all addresses are trusted, the client is the leftmost one.
	f(cdn, "10.0.0.2", "10.0.0.2, 10.0.0.3")
	f(cdn, "10.0.0.2:9", "10.0.0.2:9")
	// An element that is not an address ends the search: a client cannot choose its
	// address.
	for _, bad := range []string{"unknown", "_hidden", "for=6.6.6.6", `"6.6.6.6"`, "6.6.6.6.", "6.6.6.6 7.7.7.7", "6.6.6.6:99999", "[6.6.6.6]", "localhost", "0.0.0.0", "06.6.6.6",
		"2001:db8::1%eth0", ";", "\x80"} {
		f(cdn, cdn, bad)
		f(cdn, cdn, "6.6.6.6, "+bad)
		f(cdn, cdn, "6.6.6.6", bad)
		f(cdn, "10.0.0.2", "6.6.6.6, "+bad+", 10.0.0.2")
		f(cdn, "192.0.2.2", bad+", 192.0.2.2, 10.0.0.2")
	}
	// Empty elements are ignored.
	f(cdn, cdn, "")
	f(cdn, cdn, " ,, ")
	f(cdn, "192.0.2.2", "6.6.6.6, 192.0.2.2, , ,10.0.0.2,")
	// More than maxHops elements end the search, too.
	f(cdn, "192.0.2.2", "192.0.2.2"+strings.Repeat(", 10.0.0.2", maxHops-1))
	f(cdn, "10.0.0.2", "6.6.6.6"+strings.Repeat(", 10.0.0.2", maxHops))
	f(cdn, cdn, "6.6.6.6"+strings.Repeat(",", maxHops+1))
	f(cdn, "10.0.0.2", strings.Repeat("10.0.0.2,", 10000)+"10.0.0.2")

	x := sentBy(cdn, "6.6.6.6")
	x.trusts &^= filter.TrustFor
	if got := x.findClient(); got != x.origin.Client {
		t.Errorf("without for in trust, the client is %s", got)
	}
	x = sentBy(cdn)
	x.req.AddField("x_forwarded-for", "6.6.6.6")
	x.req.AddField("Forwarded", "for=6.6.6.6")
	if got := x.findClient(); got != x.origin.Client {
		t.Errorf("by another field, the client is %s", got)
	}
}

// FuzzClientOfARequest searches for lists by which a client chooses its address. The proxy
// before weir appends the client's address to whatever the client writes.
func FuzzClientOfARequest(f *testing.F) {
	for _, s := range []string{"", "6.6.6.6", "6.6.6.6,", ",", "unknown", `"`, "6.6.6.6, 10.0.0.2", "[::1]:80, ", "fe80::1%eth0", strings.Repeat("10.0.0.1,", 40), "for=\"", "\\"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, forged string) {
		for _, lists := range [][]string{{forged + ",192.0.2.7"}, {forged, "192.0.2.7"}, {forged + ", 192.0.2.7, 10.0.0.2"}, {forged, "192.0.2.7, 10.0.0.2", " 10.0.0.3:80"}} {
			if got := sentBy("10.0.0.1:5", lists...).findClient(); got.Addr().String() != "192.0.2.7" {
				t.Errorf("%q is of %s", lists, got)
			}
		}
		// If no proxy appends an address, the list is at best one that a trusted proxy would have written.
		x := sentBy("10.0.0.1:5", forged)
		got := x.findClient()
		for rest, element := []byte(forged), []byte(nil); got != x.origin.Client; {
			if len(rest) == 0 {
				t.Fatalf("%q is of %s, which is not in it", forged, got)
			}
			rest, element = message.CutLast(rest)
			if a, ok := message.ParseAddress(element); ok && a == got {
				break
			}
		}
	})
}

// With a chain of trusted proxies, an exchange allocates only the copy of their list.
func TestRewriteOfTheTrustedAllocatesNothing(t *testing.T) {
	x := sentBy("10.0.0.1:5")
	n := testing.AllocsPerRun(100, func() {
		x.req.Reset()
		x.req.Host = x.req.StoreString("app.example.org")
		x.req.AddField("X-Forwarded-For", "6.6.6.6, 2001:db8::1")
		x.req.AddField("X-Forwarded-For", "10.0.0.2:80, [2001:db8:1::1]:443")
		x.req.AddField("X-Forwarded-Proto", "https")
		x.req.AddField("X-Request-Id", "1")
		x.req.AddField("True-Client-IP", "192.0.2.1")
		x.req.AddField("X!User", "1")
		x.req.AddField("Proxy", "1")
		x.client = x.findClient()
		x.rewrite("")
	})
	if n != 0 || x.client.Addr().String() != "2001:db8::1" {
		t.Errorf("rewriting allocates %v times, for %s", n, x.client)
	}
}

// everyAssertion has one field for each kind of information about the client.
var everyAssertion = []string{"X-Forwarded-For: 192.0.2.7", "True-Client-IP: 192.0.2.7", "CF-Connecting-IP: 192.0.2.7", "X-Cluster-Client-IP: 192.0.2.7", "X-Client-IP: 192.0.2.7",
	"X-Forwarded-Proto: https", "X-Forwarded-Host: said", "X-Forwarded-Port: 8443", "Client-Cert: :AA==:", "X-Client-Cert-Subject: CN=said", "X-SSL-Client-Verify: SUCCESS",
	"X-Forwarded-Prefix: /said", "X-Forwarded-Ssl: on", "X-Request-Id: said", "Forwarded: for=192.0.2.8;host=said;proto=https", "X-Real-IP: 192.0.2.8",
	"Proxy: http://said", "X-Original-URL: /said", "X-Rewrite-URL: /said", "X_Real_IP: 192.0.2.8", "X!Client!Cert!Subject: CN=said", "Cookie: said"}

// Each kind of trust keeps its own headers, and no others.
func TestTrustKeepsWhatItNames(t *testing.T) {
	f := func(more string, want ...string) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, strings.Replace(plain, "protocol: http}", "protocol: http"+more+"}", 1), nil, "@app", e.address)
		c := r.dial("web")
		c.write("GET / HTTP/1.1\r\nHost: a\r\n%s\r\n\r\n", strings.Join(everyAssertion, "\r\n"))
		s := e.accept()
		head := s.head()
		s.write(ok(""))
		c.wantResponse(200, "")
		var got []string
		for line := range strings.SplitSeq(head, "\r\n") {
			name, _, _ := strings.Cut(line, ":")
			if slices.Contains(everyAssertion, line) && name != "Cookie" {
				got = append(got, name)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the endpoint got %q, not %q", more, got, want)
		}
		for _, name := range []string{"X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Port", "X-Forwarded-Scheme", "X-Scheme", "X-Real-IP", "X-Request-Id", "Forwarded", "X-Forwarded-For"} {
			if n := len(fields(head, name)); n != 1 {
				t.Errorf("%s: the endpoint got %s %d times:\n%s", more, name, n, head)
			}
		}
		client := "127.0.0.1"
		if strings.Contains(more, "127.") && !strings.Contains(more, "trust: [proto") {
			client = "192.0.2.7"
		}
		if got := fields(head, "X-Real-IP")[0]; got != client {
			t.Errorf("%s: X-Real-IP is %s", more, got)
		}
		r.record().want(t, "status", 200)
	}
	const to = ", trust_forwarded: [127.0.0.0/8]"
	f("")
	f(", trust_forwarded: [192.0.2.0/24], trust: [for, proto, host, port, client_cert, other]")
	byFor := []string{"True-Client-IP", "CF-Connecting-IP", "X-Cluster-Client-IP", "X-Client-IP"}
	f(to, append(byFor, "X-Forwarded-Proto", "X-Request-Id")...)
	f(to+", trust: [for, host]", append(byFor, "X-Forwarded-Host", "X-Request-Id")...)
	f(to+", trust: [for, port]", append(byFor, "X-Forwarded-Port", "X-Request-Id")...)
	f(to+", trust: [for, client_cert]", append(byFor, "Client-Cert", "X-Client-Cert-Subject", "X-SSL-Client-Verify", "X-Request-Id")...)
	f(to+", trust: [for, other]", append(byFor, "X-Forwarded-Prefix", "X-Forwarded-Ssl", "X-Request-Id")...)
	f(to+", trust: [proto]", "X-Forwarded-Proto", "X-Request-Id")
	f(", keep_headers: [CF-Connecting-IP, proxy, X-Forwarded-Prefix, X-SSL-Client-Verify, X-Original-URL]",
		"CF-Connecting-IP", "X-SSL-Client-Verify", "X-Forwarded-Prefix", "Proxy", "X-Original-URL")
	f(to+", drop_headers: [X-Client-IP]", "True-Client-IP", "CF-Connecting-IP", "X-Cluster-Client-IP", "X-Forwarded-Proto", "X-Request-Id")
}

// If a header with a single value arrives twice, the endpoint gets one: the sender's if
// both are equal, otherwise weir's own.
func TestSingleValuesAreSingle(t *testing.T) {
	f := func(request, name, want string) {
		t.Helper()
		x := sentBy("10.0.0.1:5")
		x.trusts |= filter.TrustHost | filter.TrustPort
		x.client = x.origin.Client
		x.req.Host = x.req.StoreString("a")
		for line := range strings.SplitSeq(request, "\n") {
			n, v, _ := strings.Cut(line, ": ")
			x.req.AddField(n, v)
		}
		x.rewrite("")
		var got []string
		for i := range x.req.Fields {
			if !x.req.Fields[i].Dropped && strings.EqualFold(string(x.req.Name(i)), name) {
				got = append(got, string(x.req.Value(i)))
			}
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%q: %s is %q, not %q", request, name, got, want)
		}
	}
	f("X-Forwarded-Proto: https", "x-forwarded-proto", "https")
	f("X-Forwarded-Proto: https\nx-forwarded-proto: https", "x-forwarded-proto", "https")
	f("X-Forwarded-Proto: https\nx-forwarded-proto: http", "x-forwarded-proto", "http")
	f("X-Forwarded-Host: b\nX-Forwarded-Host: c", "x-forwarded-host", "a")
	f("X-Forwarded-Port: 1\nX-Forwarded-Port: 2\nX-Forwarded-Port: 1", "x-forwarded-port", "80")
	// Forwarded has the same content as the other headers, in one element.
	f("X-Forwarded-Proto: wss\nX-Forwarded-Host: b:8", "forwarded", `for=10.0.0.1;host="b:8";proto=https`)
	f("X-Forwarded-Proto: https, http\nX-Forwarded-Host: \"", "forwarded", `for=10.0.0.1;host="a";proto=http`)
	f("Forwarded: for=6.6.6.6;proto=https;host=c\nforwarded: for=6.6.6.7", "forwarded", `for=10.0.0.1;host="a";proto=http`)
}

// The log, the choice of the endpoint and the PROXY header to it use the client of the
// request. The log also has the addresses of the connection.
func TestClientOfARequestIsUsed(t *testing.T) {
	one, two := newEndpoint(t), newEndpoint(t)
	text := strings.NewReplacer("protocol: http}", "protocol: http, trust_forwarded: [127.0.0.0/8]}",
		"endpoints: ['@app']", "balance: hash, send_proxy: v2, endpoints: ['@app', '@two']").Replace(plain)
	r := newRig(t, text, nil, "@app", one.address, "@two", two.address)
	c := r.dial("web")
	at := map[string]string{} // endpoints by client
	used := map[string]bool{}
	f := func(list, client string) {
		t.Helper()
		c.write("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: %s\r\n\r\n", list)
		var s *peer
		endpoint := one.address
		select {
		case s = <-one.conns:
		case s = <-two.conns:
			endpoint = two.address
		}
		h := announced(t, s)
		head := s.head()
		s.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		c.wantResponse(200, "")
		address, _, _ := strings.Cut(client, "|")
		a := netip.MustParseAddr(address)
		if h.Source.Addr() != a || h.Destination.String() != c.RemoteAddr().String() {
			t.Errorf("the endpoint's header is from %s to %s, not from %s", h.Source, h.Destination, a)
		}
		if got := fields(head, "X-Real-IP"); !slices.Equal(got, []string{address}) {
			t.Errorf("X-Real-IP is %q, not %s", got, address)
		}
		if was := at[address]; was != "" && was != endpoint {
			t.Errorf("%s is sent to %s, and was to %s", address, endpoint, was)
		}
		at[address], used[endpoint] = endpoint, true
		r.record().want(t, "client", address, "sender", c.LocalAddr(), "peer", c.LocalAddr(), "endpoint", endpoint)
	}
	for i := range 64 {
		f(fmt.Sprintf("6.6.6.6, 192.0.2.%d", i+1), fmt.Sprintf("192.0.2.%d", i+1))
		f(fmt.Sprintf("7.7.7.7, 192.0.2.%d, 127.0.0.2", i+1), fmt.Sprintf("192.0.2.%d", i+1))
	}
	if len(used) != 2 {
		t.Errorf("64 clients of one proxy are all sent to one of two endpoints: %v", used)
	}
	f("2001:db8::1", "2001:db8::1")
	c.write("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 6.6.6.7\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n")
	c.response("GET")
	r.record().want(t, "client", c.LocalAddr(), "sender", nil, "status", 400) // weir cannot interpret the rest of the request
}

// A client that lists its proxy's headers in Connection removes none of them.
func TestConnectionOfATrustedProxy(t *testing.T) {
	head := forwarded(t, "127.0.0.0/8", "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Forwarded-For, x-forwarded-proto, X-Real-IP, X-Request-Id, True-Client-IP, X-Private\r\n"+
		"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Request-Id: mine\r\nX-Real-IP: 6.6.6.6\r\nTrue-Client-IP: 192.0.2.1\r\nX-Private: 1\r\n\r\n")
	for name, want := range map[string]string{"X-Forwarded-For": "192.0.2.1, 127.0.0.1", "X-Forwarded-Proto": "https", "X-Real-IP": "192.0.2.1",
		"X-Request-Id": "mine", "True-Client-IP": "192.0.2.1", "X-Private": ""} {
		if got := fields(head, name); strings.Join(got, "|") != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
}

// drop_headers applies to trailers as well, in any spelling.
func TestDroppedTrailers(t *testing.T) {
	names := []string{"X-Forwarded-For", "X-Real-IP", "True-Client-IP", "Proxy", "X-Original-URL", "X!Forwarded!For", "X-User", "x!user", "Client-Cert"}
	trailersOf := make(chan http.Header, 1)
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		trailersOf <- req.Trailer.Clone()
		w.Header().Set("Content-Length", "0")
	})
	text := strings.ReplaceAll(secure2, "protocol: http,", "protocol: http, trust_forwarded: [127.0.0.0/8], trust: [for, proto, client_cert], drop_headers: [X-User], ")
	r := newRig(t, text, nil, "@app", app)
	want := func() {
		t.Helper()
		r.record().want(t, "status", 200)
		if got := next(t, trailersOf, "request"); len(got) != 1 || got.Get("X-Checksum") != "1" {
			t.Errorf("the endpoint got the trailers %v", got)
		}
	}
	var trailers strings.Builder
	trailer2 := []string{"x-checksum: 1"}
	for _, name := range names {
		fmt.Fprintf(&trailers, "%s: 6.6.6.6\r\n", name)
		trailer2 = append(trailer2, strings.ToLower(name)+": 6.6.6.6")
	}
	c := r.dial("web")
	head := "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: X-Checksum\r\nTransfer-Encoding: chunked\r\n\r\n"
	rest := "1\r\nx\r\n0\r\n" + trailers.String() + "X-Checksum: 1\r\n\r\n"
	c.write("%s", head+rest) // in one piece, and byte by byte
	c.wantResponse(200, "")
	want()
	c.write("%s", head)
	c.write("%s", "1\r\ny\r\n")
	c.write("%s", rest)
	c.wantResponse(200, "")
	want()
	c2 := r.dial2("web")
	id := c2.request(false, "/", ":method: POST", "te: trailers", "trailer: x-checksum")
	c2.data(id, false, "x")
	c2.head2(id, true, trailer2...)
	c2.want2(id, 200, "")
	want()
}

// drop_headers and keep_headers apply to HTTP/2 as well, and change with a reload.
func TestHeaderListsOverHTTP2(t *testing.T) {
	headers := make(chan http.Header, 1)
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		headers <- req.Header.Clone()
		w.Header().Set("Content-Length", "0")
	})
	text := strings.ReplaceAll(secure2, "protocol: http,", "protocol: http, drop_headers: [X-User], keep_headers: [True-Client-IP], ")
	r := newRig(t, text, nil, "@app", app)
	c := r.dial2("web")
	f := func(want ...string) {
		t.Helper()
		c.want2(c.request(true, "/", "x-user: 1", "x!user: 1", "true-client-ip: 1", "true~client~ip: 1", "x-client-ip: 1", "proxy: 1", "x-forwarded-for: 6.6.6.6", "x~forwarded~for: 6.6.6.6"), 200, "")
		r.record().want(t, "status", 200)
		var names []string
		for name, values := range next(t, headers, "request") {
			if slices.Contains(values, "1") || slices.Contains(values, "6.6.6.6") {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("the endpoint got %q, not %q", names, want)
		}
	}
	f("True-Client-Ip")
	r.load(secure2, nil, "@app", app)
	f("X!user", "X-User")
}
