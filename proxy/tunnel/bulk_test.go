package tunnel

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	mrand "math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// duplexer is the outer end of a connection: the client or the endpoint, plain or TLS.
type duplexer interface {
	io.ReadWriter
	CloseWrite() error
}

// secure makes a TLS session between who and an end of the tunnel.
func secure(t testing.TB, end *ConnEnd, who net.Conn, version uint16) *tls.Conn {
	t.Helper()
	server := tls.Server(end.Conn.NetConn(), &tls.Config{Certificates: []tls.Certificate{certificate()}, MaxVersion: version})
	client := tls.Client(who, &tls.Config{InsecureSkipVerify: true, MaxVersion: version})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := errors.Join(client.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	end.TLS = server
	return client
}

var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
})

func TestBulkBothWays(t *testing.T) {
	f := func(name string, size int, clientTLS, endpointTLS uint16) {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				size = 4 << 20
			}
			b := newBench(t)
			var client, endpoint duplexer = b.client, b.endpoint
			if clientTLS != 0 {
				client = secure(t, b.ends[0], b.client, clientTLS)
			}
			if endpointTLS != 0 {
				endpoint = secure(t, b.ends[1], b.endpoint, endpointTLS)
			}
			b.run(Options{})
			var wg sync.WaitGroup
			for i, e := range []duplexer{client, endpoint} {
				wg.Go(func() { produce(t, e, size, byte(i)) })
				wg.Go(func() { consume(t, e, size, byte(1-i)) })
			}
			wg.Wait()
			if r := b.want(t, ReasonEOF); r.Sent != int64(size) || r.Received != int64(size) {
				t.Errorf("counted %d and %d bytes, want %d", r.Sent, r.Received, size)
			}
		})
	}
	f("plain", 50<<20, 0, 0)
	f("client TLS 1.3", 4<<20, tls.VersionTLS13, 0)
	f("client TLS 1.2", 4<<20, tls.VersionTLS12, 0)
	f("endpoint TLS 1.3", 4<<20, 0, tls.VersionTLS13)
	f("both TLS 1.3", 50<<20, tls.VersionTLS13, tls.VersionTLS13)
}

// produce writes size bytes, which seed determines, in pieces of many sizes. Then it ends the
// stream.
func produce(t *testing.T, w duplexer, size int, seed byte) {
	src, sizes := mrand.NewChaCha8([32]byte{seed}), mrand.New(mrand.NewPCG(1, uint64(seed)))
	buf := make([]byte, 200<<10)
	for size > 0 {
		p := buf[:min(size, 1+sizes.IntN(len(buf)))]
		src.Read(p)
		if _, err := w.Write(p); err != nil {
			t.Errorf("writing with %d bytes to go: %v", size, err)
			return
		}
		size -= len(p)
	}
	if err := w.CloseWrite(); err != nil {
		t.Error(err)
	}
}

func consume(t *testing.T, r io.Reader, size int, seed byte) {
	got, want := sha256.New(), sha256.New()
	src, sizes := mrand.NewChaCha8([32]byte{seed}), mrand.New(mrand.NewPCG(1, uint64(seed)))
	buf := make([]byte, 200<<10)
	for left := size; left > 0; { // the same pieces as in produce, because the output of ChaCha8.Read depends on them
		p := buf[:min(left, 1+sizes.IntN(len(buf)))]
		src.Read(p)
		want.Write(p)
		left -= len(p)
	}
	if n, err := io.Copy(got, r); err != nil || n != int64(size) {
		t.Errorf("read %d bytes (%v), want %d", n, err, size)
	} else if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("the bytes are not those that were sent")
	}
}

// If the reader is slow, all buffers before it fill up.
func TestSlowReader(t *testing.T) {
	const size = 6 << 20
	b := newBench(t)
	b.endpoint.SetReadBuffer(128 << 10)
	b.run(Options{})
	go produce(t, b.client, size, 3)
	consume(t, small{b.endpoint}, size, 3)
	b.endpoint.Close()
	wantEOF(t, b.client)
	b.want(t, ReasonEOF)
}

type small struct{ r io.Reader }

func (s small) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 3000)]) }

func TestTLSHalfClose(t *testing.T) {
	f := func(version uint16, notify bool) {
		b := newBench(t)
		client := secure(t, b.ends[0], b.client, version)
		b.run(Options{})
		send(t, client, "question")
		if notify {
			client.CloseWrite() // only close_notify, no FIN
		} else {
			b.client.CloseWrite() // only FIN
		}
		wantBytes(t, b.endpoint, "question")
		wantEOF(t, b.endpoint)
		send(t, b.endpoint, "answer")
		wantBytes(t, client, "answer")
		b.endpoint.CloseWrite()
		if n, err := client.Read(make([]byte, 1)); err != io.EOF {
			t.Fatalf("read %d bytes (%v), want close_notify", n, err)
		}
		wantEOF(t, b.client) // the FIN below TLS
		b.want(t, ReasonEOF)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		f(version, true)
		f(version, false)
	}
}

func TestTLSCutInARecordIsNoEnd(t *testing.T) {
	b := newBench(t)
	client := secure(t, b.ends[0], b.client, tls.VersionTLS13)
	b.run(Options{})
	send(t, client, "whole")
	wantBytes(t, b.endpoint, "whole")
	send(t, b.client, "\x17\x03\x03\x01\x00 no more than a part")
	b.client.CloseWrite()
	wantReset(t, b.endpoint)
	b.want(t, ReasonClientReset)
}

func TestTLSReset(t *testing.T) {
	b := newBench(t)
	endpoint := secure(t, b.ends[1], b.endpoint, tls.VersionTLS13)
	b.run(Options{})
	send(t, endpoint, "half")
	wantBytes(t, b.client, "half")
	b.endpoint.SetLinger(0)
	b.endpoint.Close()
	wantReset(t, b.client)
	b.want(t, ReasonEndpointReset)
}
