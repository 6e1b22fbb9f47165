package http2test

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Listen accepts connections until the end of the test, and calls serve for each of them, one
// after another. At the end of the test it closes them.
func Listen(t *testing.T, serve func(c net.Conn)) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepted []net.Conn
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			accepted = append(accepted, c)
			serve(c)
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-over
		for _, c := range accepted { // their clients need not have closed them: net/http closes only those that are idle
			c.Close()
		}
	})
	return ln.Addr().String()
}

// Client returns net/http's client with prior knowledge.
func Client(t *testing.T) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// OneConnection returns the same client, limited to one connection.
func OneConnection(t *testing.T, url string) *http.Client {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	c, err := (&http.Transport{Protocols: &protocols}).NewClientConn(t.Context(), "http", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &http.Client{Transport: c, Timeout: 20 * time.Second}
}

// Flusher flushes each write of a handler.
type Flusher struct{ http.ResponseWriter }

// Write writes p, and flushes it.
func (f Flusher) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	f.ResponseWriter.(http.Flusher).Flush()
	return n, err
}

// H2spec runs the test suite h2spec against an address, if h2spec is installed.
func H2spec(t *testing.T, addr string) {
	t.Helper()
	h2spec, err := exec.LookPath("h2spec")
	if err != nil && os.Getenv("CI") == "true" {
		t.Fatal("h2spec is not installed, and in CI every peer has to be there")
	}
	if err != nil {
		t.Skip("h2spec is not installed; .ci/run says where it is from")
	}
	host, port, _ := net.SplitHostPort(addr)
	out, err := exec.Command(h2spec, "-h", host, "-p", port, "-o", "5").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(" 0 failed")) {
		t.Errorf("%v\n%s", err, out)
	}
}
