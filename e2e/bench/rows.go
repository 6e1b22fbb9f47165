package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A row is one kind of load.
type row struct {
	Key, Name string
	// Budget is the ratio that weir must reach, against the proxy named; 0: there is none.
	Budget  float64
	Against string
	port    func(s setup) int
	secure  bool
	shake   shake // how a secure row's handshakes go
	// opens is how many TCP connections a request opens at the proxy; it tells
	// whether the load was the one that was meant.
	opens float64
	path  string // what rows of HTTP/2 ask for; "": the row is of HTTP/1.1
	idle  bool   // memory is measured, not time
	load  func(s setup, r row, d time.Duration) []string
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

	handshakeRow("full13-rsa", "full TLS 1.3 handshake, RSA 2048", shake{RSA: true}),
	handshakeRow("resumed13", "resumed TLS 1.3 handshake, ECDSA P-256", shake{Resumed: true}),
	handshakeRow("resumed13-rsa", "resumed TLS 1.3 handshake, RSA 2048", shake{Resumed: true, RSA: true}),
	handshakeRow("resumed12", "resumed TLS 1.2 handshake, ECDSA P-256", shake{Resumed: true, Old: true}),
	handshakeRow("resumed12-rsa", "resumed TLS 1.2 handshake, RSA 2048", shake{Resumed: true, Old: true, RSA: true}),

	h2Row("h2-1", "HTTP/2 over TLS, 1 stream", pathSmall, 64, 1),
	h2Row("h2-100", "HTTP/2 over TLS, 100 streams", pathSmall, 8, 100),
	h2Row("h2-10k", "HTTP/2 over TLS, 10 streams, 10 KiB", pathMedium, 32, 10),
	h2Row("h2-1m", "HTTP/2 over TLS, 10 streams, 1 MiB", pathLarge, 8, 10),
	h2Row("h2-upload", "HTTP/2 over TLS, 10 streams, uploads of 16 KiB", pathUpload, 32, 10),
	h2Row("grpc", "gRPC unary over TLS, 10 streams, to an h2c backend", pathCall, 32, 10),
	idleRow("h2-idle", "idle, HTTP/2 after one request", 0),
	idleRow("h2-idle-uploads", "idle, HTTP/2 after 100 uploads of 16 KiB", 100),
}

// groups are names for several rows.
var groups = map[string]func(r row) bool{
	"all":        func(r row) bool { return true },
	"budgets":    func(r row) bool { return r.Budget > 0 },
	"handshakes": func(r row) bool { return r.Key == "handshake" || r.Budget == 0 && r.path == "" },
	"http2":      func(r row) bool { return r.path != "" },
}

// withBudget is r with a ratio that weir must reach.
func withBudget(r row, budget float64, against string) row {
	r.Budget, r.Against = budget, against
	return r
}

// handshakeRow is one whose figures are for comparison, without a budget.
func handshakeRow(key, name string, s shake) row {
	return row{Key: key, Name: name, opens: 1, secure: true, shake: s,
		port: func(s setup) int { return s.TLSPort }, load: handshakes}
}

// chooseRows finds the rows and groups in a list with commas, in the order of allRows.
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

// wrk is Debian's wrk: one thread, 64 connections, each with one request under way.
func wrk(s setup, r row, d time.Duration) []string {
	scheme := "http"
	if r.secure {
		scheme = "https"
	}
	args := []string{"wrk", "-t", "1", "-c", fmt.Sprint(connections), "-d", fmt.Sprintf("%ds", int(d.Seconds()+0.999))}
	if r.opens > 0 {
		args = append(args, "-H", "Connection: close")
	}
	return append(args, fmt.Sprintf("%s://127.0.0.1:%d/", scheme, r.port(s)))
}
