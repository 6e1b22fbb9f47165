package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// loadResult is what a load generator says in the end.
type loadResult struct {
	Requests int
	Errors   int
	First    string // the first error
}

// handshakes is our own generator, since wrk cannot: a new connection and a
// full TLS 1.3 handshake for each request, and every answer is checked.
func handshakes(s setup, r row, d time.Duration) []string {
	self, err := os.Executable()
	if err != nil {
		self = os.Args[0]
	}
	return []string{self, "handshakes", "-address", fmt.Sprintf("127.0.0.1:%d", r.port(s)), "-for", d.String(), "-body", s.Body}
}

func handshakesMain(args []string) int {
	flags := flag.NewFlagSet("handshakes", flag.ExitOnError)
	address := flags.String("address", "", "host:port")
	d := flags.Duration("for", time.Second, "how long")
	body := flags.String("body", "", "what every answer has to be")
	flags.Parse(args)

	var result loadResult
	var lock sync.Mutex
	var workers sync.WaitGroup
	deadline := time.Now().Add(*d)
	for range connections {
		workers.Go(func() {
			for time.Now().Before(deadline) {
				err := handshakeOnce(*address, *body)
				lock.Lock()
				result.Requests++
				if err != nil {
					if result.Errors++; result.First == "" {
						result.First = err.Error()
					}
				}
				lock.Unlock()
			}
		})
	}
	workers.Wait()
	json.NewEncoder(os.Stdout).Encode(result)
	return 0
}

// clientTLS offers TLS 1.3 alone and X25519 alone: one key share, no second
// round trip. Without a session cache nothing is resumed. The certificate's
// chain is not verified, its signature over the handshake is.
var clientTLS = &tls.Config{
	MinVersion:         tls.VersionTLS13,
	CurvePreferences:   []tls.CurveID{tls.X25519},
	ServerName:         "localhost",
	NextProtos:         []string{"http/1.1"},
	InsecureSkipVerify: true,
}

func handshakeOnce(address, body string) error {
	raw, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	c := tls.Client(raw, clientTLS)
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	if err := checkTLS(c.ConnectionState()); err != nil {
		return err
	}
	return checkResponse(bufio.NewReader(c), body)
}

func checkTLS(s tls.ConnectionState) error {
	if s.Version != tls.VersionTLS13 || s.CipherSuite != tls.TLS_AES_128_GCM_SHA256 || s.DidResume {
		return fmt.Errorf("the handshake is not the one that was meant: %s, %s, resumed: %t",
			tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite), s.DidResume)
	}
	return nil
}

func checkResponse(r *bufio.Reader, body string) error {
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != 200 || string(got) != body {
		return fmt.Errorf("the answer is not the backend's: %s, %d bytes", resp.Status, len(got))
	}
	return nil
}
