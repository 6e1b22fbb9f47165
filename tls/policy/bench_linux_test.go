package policy

import (
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"golang.org/x/sys/unix"
)

// BenchmarkHandshake measures the cost of a handshake for the server. server-µs/op is the
// CPU time of the server's thread, with its system calls on loopback, without the client.
func BenchmarkHandshake(b *testing.B) {
	ca := newAuthority(b, "ca")
	ecdsaCert := ca.issue(b, "a.example.org", false, time.Now().Add(time.Hour))
	rsaCert := ca.issue(b, "a.example.org", true, time.Now().Add(time.Hour))
	x25519 := &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}
	p256 := &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP256}}
	tickets := &tls.Config{CurvePreferences: x25519.CurvePreferences, ClientSessionCache: dropSessions{}}
	resuming := &tls.Config{CurvePreferences: x25519.CurvePreferences, ClientSessionCache: &anySession{}}
	tls12 := &tls.Config{CurvePreferences: x25519.CurvePreferences, MaxVersion: tls.VersionTLS12}

	run := func(name string, cert *tls.Certificate, client *tls.Config) {
		p := newPolicy(b, config.TLSPolicy{}, cert, keyring{}.attach)
		b.Run(name, func(b *testing.B) { benchmarkHandshake(b, p.Config, client) })
	}
	run("ECDSA/X25519", ecdsaCert, x25519)
	run("ECDSA/X25519/ticket", ecdsaCert, tickets)
	run("ECDSA/X25519/resumed", ecdsaCert, resuming)
	run("ECDSA/P-256", ecdsaCert, p256)
	run("ECDSA/X25519MLKEM768", ecdsaCert, &tls.Config{})
	run("ECDSA/X25519/TLS 1.2", ecdsaCert, tls12)
	run("RSA/X25519", rsaCert, x25519)

	one := newPolicy(b, config.TLSPolicy{}, ecdsaCert, keyring{}.attach)
	listener := Server(func(*tls.ClientHelloInfo) (*Policy, error) { return one, nil }, nil)
	b.Run("ECDSA/X25519/by Server", func(b *testing.B) { benchmarkHandshake(b, listener, x25519) })
}

// dropSessions makes the client request tickets, and discards them.
type dropSessions struct{}

func (dropSessions) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (dropSessions) Put(string, *tls.ClientSessionState)        {}

func benchmarkHandshake(b *testing.B, server, client *tls.Config) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	client = client.Clone()
	client.InsecureSkipVerify = true
	client.ServerName = "a.example.org"
	go func() {
		for {
			nc, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return
			}
			c := tls.Client(nc, client)
			c.Handshake()
			c.Read(make([]byte, 1)) // reads the tickets, until the server closes
			nc.Close()
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ReportAllocs()
	var used time.Duration
	for b.Loop() {
		nc, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		before := threadTime()
		s := tls.Server(nc, server)
		if err := s.Handshake(); err != nil && err != io.EOF {
			b.Fatal(err)
		}
		used += threadTime() - before
		nc.Close()
	}
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "server-µs/op")
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
