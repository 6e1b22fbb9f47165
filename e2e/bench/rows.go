package main

import (
	"fmt"
	"time"
)

// A row is one kind of load.
type row struct {
	Key, Name string
	// Budget is the ratio that weir must reach, against the proxy named.
	Budget  float64
	Against string
	port    func(s setup) int
	secure  bool
	// opens is how many TCP connections a request opens at the proxy; it tells
	// whether the load was the one that was meant.
	opens float64
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
	{Key: "tcp", Name: "raw TCP, request/response", Budget: 1.0, Against: "haproxy",
		port: func(s setup) int { return s.TCPPort }, load: wrk},
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
