package soak

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/header"
)

// If the environment has this variable, the test binary is a worker.
const workerVariable = "WEIR_SOAK_TEST_WORKER"

func TestMain(m *testing.M) {
	tick = 5 * time.Millisecond
	if os.Getenv(workerVariable) != "" {
		if err := Work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// workerCommand is the command with which Run starts workers.
func workerCommand() []string {
	return []string{"/usr/bin/env", workerVariable + "=1", os.Args[0]}
}

// serve accepts connections until the test ends, and passes each to handle. handle need
// not close it.
func serve(t *testing.T, handle func(net.Conn)) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var lock sync.Mutex
	open := map[net.Conn]bool{}
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			lock.Lock()
			open[c] = true
			lock.Unlock()
			all.Go(func() {
				handle(c)
				c.Close()
				lock.Lock()
				delete(open, c)
				lock.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		lock.Lock()
		for c := range open {
			c.Close()
		}
		lock.Unlock()
		all.Wait()
	})
	return ln.Addr().String()
}

// certificate returns a certificate for the TLS of tests.
var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

// overTLS does the TLS handshake, and then calls handle.
func overTLS(handle func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate()}})
		if s.Handshake() == nil {
			handle(s)
			s.Close()
		}
	}
}

// answering answers every request with the result of answer, which gets the number of the
// request on its connection. It ends when the result is empty.
func answering(answer func(n int, r *http.Request) string) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		for n := 0; ; n++ {
			request, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			request.RemoteAddr = c.RemoteAddr().String()
			io.Copy(io.Discard, request.Body)
			text := answer(n, request)
			if text == "" {
				return
			}
			io.WriteString(c, text)
		}
	}
}

// always answers every request with text.
func always(text string) func(net.Conn) {
	return answering(func(int, *http.Request) string { return text })
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// behindHeader reads a PROXY header, and passes its client address and the rest of the
// connection to handle.
func behindHeader(t *testing.T, handle func(net.Conn, *header.Header)) func(net.Conn) {
	return func(c net.Conn) {
		r := bufio.NewReader(c)
		var text []byte
		for {
			b, err := r.ReadByte()
			if err != nil {
				return
			}
			text = append(text, b)
			if n, err := header.Scan(text); err != nil {
				t.Errorf("the header %q is wrong: %v", text, err)
				return
			} else if n == len(text) {
				break
			}
		}
		h, err := header.Parse(text)
		if err != nil {
			t.Errorf("the header %q is wrong: %v", text, err)
			return
		}
		handle(&buffered{c, r}, &h)
	}
}

func newReader(c net.Conn) *bufio.Reader { return bufio.NewReader(c) }

type buffered struct {
	net.Conn
	r *bufio.Reader
}

func (b *buffered) Read(p []byte) (int, error) { return b.r.Read(p) }

// soak runs the options against address until enough returns true, and returns the
// report. Before change, the options are three connections with one request each.
func soak(t *testing.T, address string, change func(*Options), enough func(*Snapshot) bool) *Report {
	t.Helper()
	o := Defaults()
	o.Targets, o.Connections, o.ConnectRate, o.Duration, o.Every, o.Timeout = []string{address}, 3, 1000, patience, 0, patience
	change(&o)
	if err := o.Prepare(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	report, err := Run(ctx, &o, workerCommand(), func(s *Snapshot) {
		if enough(s) {
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// patience is longer than any test takes, unless the test fails.
const patience = 20 * time.Second

// exchanges returns a condition for soak: this many exchanges were made.
func exchanges(n int64) func(*Snapshot) bool {
	return func(s *Snapshot) bool { return s.Exchanges >= n }
}

// anomalies returns a condition for soak: this many anomalies were found.
func anomalies(n int64) func(*Snapshot) bool {
	return func(s *Snapshot) bool {
		var sum int64
		for _, a := range s.Anomalies {
			sum += a.Count
		}
		return sum >= n
	}
}

// outcomes returns a condition for soak: this many connections with faults had this
// outcome.
func outcomes(r role, what string, n int64) func(*Snapshot) bool {
	return func(s *Snapshot) bool { return s.Outcomes[string(r)][what] >= n }
}

// wantKinds checks that these kinds of anomalies were found, and no others.
func wantKinds(t *testing.T, r *Report, want ...Kind) {
	t.Helper()
	found := map[Kind]bool{}
	for _, a := range r.Anomalies {
		found[a.Kind] = true
	}
	for _, k := range want {
		if !found[k] {
			t.Errorf("no %s was found", k)
		}
		delete(found, k)
	}
	for k := range found {
		t.Errorf("%s was found", k)
	}
	if t.Failed() {
		var b strings.Builder
		r.Text(&b)
		t.Log(b.String())
	}
}

// noLeaks waits at the end of the test until there are no more goroutines than before.
func noLeaks(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				text := make([]byte, 1<<16)
				t.Fatalf("%d goroutines are left of %d:\n%s", runtime.NumGoroutine()-before, before, text[:runtime.Stack(text, true)])
			}
		}
	})
}

// String returns the part of a text report about these numbers.
func (n *Numbers) String() string {
	var b strings.Builder
	n.text(&b)
	return b.String()
}
