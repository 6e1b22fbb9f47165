package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A row is one kind of load.
type row struct {
	Key, Name string
	// Budget is the ratio to the named proxy that weir must reach; 0: none.
	Budget  float64
	Against string
	port    func(s setup) int
	secure  bool
	shake   shake // the kind of handshake of a row with TLS
	// opens is how many TCP connections the proxy accepts for each request. It shows
	// whether the load was as intended.
	opens float64
	path  string // the path of requests over HTTP/2; "": the row uses HTTP/1.1
	file  string // the path for wrk; "": the path of the small response
	idle  bool   // the row measures memory, not time
	kind  kind   // the kind of an idle row's connections
	// among is the property by which 10,000 routes differ (amongPaths or amongHosts), or what the only route has:
	// filters (edited or guarded) or traces (traced). The bench compares the row with the same load on a single route without filters.
	among  string
	logged bool   // the proxies write an access log
	suffix string // added to the names of the proxies in the results; "": none
	load   func(s setup, r row, d time.Duration) []string
}

const connections = 64

var allRows = []row{
	{Key: "http1", Name: "HTTP/1.1", Budget: 1.0, Against: "haproxy",
		port: func(s setup) int { return s.HTTPPort }, load: wrk},
	{Key: "tls1", Name: "HTTP/1.1 over TLS", Budget: 0.9, Against: "haproxy", secure: true,
		port: func(s setup) int { return s.TLSPort }, load: wrk},
	{Key: "connection", Name: "new connection a request, plain", Budget: 1.0, Against: "haproxy", opens: 1,
		port: func(s setup) int { return s.HTTPPort }, load: wrk},
	{Key: "handshake", Name: "full TLS 1.3 handshake a request", Budget: 1.0, Against: "nginx", opens: 1, secure: true,
		port: func(s setup) int { return s.TLSPort }, load: handshakes},
	withBudget(h2Row("h2-10", "HTTP/2 over TLS, 10 streams", pathSmall, 32, 10), 0.85, "haproxy"),
	{Key: "tcp", Name: "raw TCP, request/response", Budget: 1.0, Against: "haproxy",
		port: func(s setup) int { return s.TCPPort }, load: wrk},
	amongRow(amongPaths, "one route among 10,000 paths of a host"),
	amongRow(amongHosts, "one route among 10,000 hosts"),
	filterRow(edited, "three header changes, a rate limit, two weights"),
	filterRow(guarded, "basic authentication, a known password"),
	tracedRow(traced, "1 % of the requests traced"),
	logged(row{Key: "http1-log", Name: "HTTP/1.1, access log", port: func(s setup) int { return s.HTTPPort }, load: wrk}),
	logged(row{Key: "tls1-log", Name: "HTTP/1.1 over TLS, access log", secure: true, port: func(s setup) int { return s.TLSPort }, load: wrk}),
	logged(h2Row("h2-10-log", "HTTP/2 over TLS, 10 streams, access log", pathSmall, 32, 10)),
	{Key: "gzip", Name: "gzip of 10 KiB of JSON, HTTP/1.1", Budget: 1.0, Against: "nginx", file: pathJSON,
		port: func(s setup) int { return s.HTTPPort }, load: wrk},
	idleRow("tls", 0.5),
	idleRow("h2", 0.5),
	idleRow("plain", 1.0),
	idleRow("tunnel", 1.0),

	handshakeRow("full13-rsa", "full TLS 1.3 handshake, RSA 2048", shake{RSA: true}),
	handshakeRow("resumed13", "resumed TLS 1.3 handshake, ECDSA P-256", shake{Resumed: true}),
	handshakeRow("resumed13-rsa", "resumed TLS 1.3 handshake, RSA 2048", shake{Resumed: true, RSA: true}),
	handshakeRow("resumed12", "resumed TLS 1.2 handshake, ECDSA P-256", shake{Resumed: true, Old: true}),
	handshakeRow("resumed12-rsa", "resumed TLS 1.2 handshake, RSA 2048", shake{Resumed: true, Old: true, RSA: true}),

	{Key: "http1-1m", Name: "HTTP/1.1, 1 MiB", file: pathLarge, port: func(s setup) int { return s.HTTPPort }, load: wrk},
	{Key: "tls1-1m", Name: "HTTP/1.1 over TLS, 1 MiB", file: pathLarge, secure: true, port: func(s setup) int { return s.TLSPort }, load: wrk},
	h2Row("h2-1", "HTTP/2 over TLS, 1 stream", pathSmall, 64, 1),
	h2Row("h2-100", "HTTP/2 over TLS, 100 streams", pathSmall, 8, 100),
	h2Row("h2-10k", "HTTP/2 over TLS, 10 streams, 10 KiB", pathMedium, 32, 10),
	h2Row("h2-1m", "HTTP/2 over TLS, 10 streams, 1 MiB", pathLarge, 8, 10),
	h2Row("h2-upload", "HTTP/2 over TLS, 10 streams, uploads of 16 KiB", pathUpload, 32, 10),
	h2Row("grpc", "gRPC unary over TLS, 10 streams, to an h2c backend", pathCall, 32, 10),
	idleRow("tls-mutual-used", 0),
	idleRow("h2-uploads", 0),
}

// groups are names for several rows.
var groups = map[string]func(r row) bool{
	"all":        func(r row) bool { return true },
	"logs":       func(r row) bool { return r.logged },
	"budgets":    func(r row) bool { return r.Budget > 0 },
	"handshakes": func(r row) bool { return r.Key == "handshake" || r.Budget == 0 && r.opens > 0 },
	"http2":      func(r row) bool { return r.path != "" || strings.HasPrefix(r.kind.key, "h2") },
	"idle":       func(r row) bool { return r.idle },
	"routes":     func(r row) bool { return r.among != "" },
}

// budgets3 are the ratios that weir must reach beside HAProxy 3.x, when the peers set all the HTTP headers that weir sets.
var budgets3 = map[string]float64{"http1": 0.90, "tls1": 0.80, "connection": 0.95, "h2-10": 0.75, "tcp": 0.95}

// anyHAProxy stands for the fastest of the measured HAProxies.
const anyHAProxy = "the fastest haproxy"

// budget returns the ratio that weir must reach in a row, and the proxy to which it is relative. Beside peers that
// set X-Forwarded-For alone, it is 1.0 relative to the fastest HAProxy.
func (o *options) budget(r row) (float64, string) {
	switch {
	case r.Against != "haproxy" || r.idle || r.logged:
		return r.Budget, r.Against
	case o.fields == "lean":
		return 1, anyHAProxy
	case budgets3[r.Key] != 0 && slices.Contains(o.peers, "haproxy3"):
		return budgets3[r.Key], "haproxy3"
	}
	return r.Budget, r.Against
}

// withBudget returns r with a ratio that weir must reach.
func withBudget(r row, budget float64, against string) row {
	r.Budget, r.Against = budget, against
	return r
}

// logged returns r with access logs. The target is no more than HAProxy takes; 1.03 counts as that.
func logged(r row) row {
	r.logged = true
	return withBudget(r, 1.03, "haproxy")
}

// handshakeRow returns a row whose results are for comparison, without a budget.
func handshakeRow(key, name string, s shake) row {
	return row{Key: key, Name: name, opens: 1, secure: true, shake: s,
		port: func(s setup) int { return s.TLSPort }, load: handshakes}
}

// chooseRows returns the rows of a comma-separated list of rows and groups, in the order
// of allRows.
func chooseRows(list string) ([]row, error) {
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(list, ",") {
		in := groups[name]
		if in == nil {
			in = func(r row) bool { return r.Key == name }
		}
		found := false
		for _, r := range allRows {
			if in(r) {
				found, wanted[r.Key] = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("-rows: there is no row %q", name)
		}
	}
	return slices.DeleteFunc(slices.Clone(allRows), func(r row) bool { return !wanted[r.Key] }), nil
}

// wrk is Debian's wrk with one thread and 64 connections, each with one open request.
func wrk(s setup, r row, d time.Duration) []string {
	scheme := "http"
	if r.secure {
		scheme = "https"
	}
	n := connections
	if r.file != "" && r.among == "" {
		n = 8 // with more, requests would wait longer than wrk's timeout
	}
	args := []string{"wrk", "-t", "1", "-c", fmt.Sprint(n), "-d", fmt.Sprintf("%ds", int(d.Seconds()+0.999)), "--timeout", "20s"}
	if r.opens > 0 {
		args = append(args, "-H", "Connection: close")
	}
	if r.file == pathJSON {
		args = append(args, "-H", "Accept-Encoding: gzip")
	}
	if r.among == guarded {
		args = append(args, "-H", credentials) // the single route gets the same request
	}
	return append(args, fmt.Sprintf("%s://127.0.0.1:%d%s", scheme, r.port(s), cmp.Or(r.file, "/")))
}
