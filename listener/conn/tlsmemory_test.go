package conn

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"reflect"
	"testing"
	"time"
	"unsafe"
)

// TestTLSFields fails if tls.Conn has other fields than ReleaseTLS expects, for example because a new version
// of Go has renamed some. In that case look in crypto/tls/conn.go for the code that uses them, and then
// change tlsmemory.go.
func TestTLSFields(t *testing.T) {
	if !tlsBuffers.known {
		t.Fatal("a tls.Conn has no longer rawInput, hand (bytes.Buffer) and input (bytes.Reader)")
	}
	if findTLSBuffers(reflect.TypeFor[net.TCPConn]()).known {
		t.Error("they were found where they are not")
	}
}

func tlsPair(t *testing.T, version uint16) (server, client *tls.Conn, wire net.Conn) {
	t.Helper()
	c, other := pair(t)
	server, client = tlsOver(t, version, c, other)
	return server, client, other
}

// tlsOver does the handshake over a pair.
func tlsOver(t *testing.T, version uint16, c *Conn, other net.Conn) (server, client *tls.Conn) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	server = tls.Server(c.NetConn(), &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAnyClientCert, MaxVersion: version})
	client = tls.Client(other, &tls.Config{Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true, MaxVersion: version})
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := errors.Join(client.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	return server, client
}

// held returns how much memory a session keeps for reading.
func held(c *tls.Conn) int {
	raw := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c), tlsBuffers.raw))
	hand := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c), tlsBuffers.hand))
	return raw.Cap() + hand.Cap()
}

func TestReleaseTLS(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		server, client, _ := tlsPair(t, version)
		if held(server) < 100 {
			t.Error("a handshake leaves nothing, the test shows nothing")
		}
		for range 3 {
			ReleaseTLS(server)
			if n := held(server); n != 0 {
				t.Errorf("%d bytes are kept", n)
			}
			message := make([]byte, 100<<10)
			rand.Read(message)
			go client.Write(message)
			got := make([]byte, len(message))
			for n := 0; n < len(got); { // nothing is lost at any position
				ReleaseTLS(server)
				m, err := server.Read(got[n:min(n+700, len(got))])
				if err != nil {
					t.Fatal(err)
				}
				n += m
			}
			if !bytes.Equal(got, message) {
				t.Fatal("what was read is not what was sent")
			}
			if n := held(server); n < 4<<10 {
				t.Errorf("large records leave only %d bytes, the test shows nothing", n)
			}
			go server.Write([]byte("answer"))
			wantRead(t, client, "answer")
		}
		ReleaseTLS(server)
		client.CloseWrite()
		if _, err := server.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
		ReleaseTLS(server)
	}
}

// ReleaseTLS keeps a record that has arrived in part; the record is completed later.
func TestReleaseTLSWithinARecord(t *testing.T) {
	server, client, wire := tlsPair(t, tls.VersionTLS13)
	record := capture(t, client, "half and half")
	inner := (*Conn)(server.NetConn().(*netConn))
	read := func() (string, error) {
		b := make([]byte, 100)
		var n int
		err := inner.Await(func() bool {
			var err error
			n, err = server.Read(b)
			return err == nil || err == ErrWouldBlock // after the read
		})
		return string(b[:n]), err
	}
	wire.Write(record[:9])
	for before := inner.BytesRead; inner.BytesRead-before < 9; {
		if got, err := read(); got != "" || err != nil {
			t.Fatalf("read %q, %v", got, err)
		}
	}
	ReleaseTLS(server)
	wire.Write(record[9:])
	for {
		got, err := read()
		if err != nil || got != "" && got != "half and half" {
			t.Fatalf("read %q, %v", got, err)
		}
		if got != "" {
			return
		}
	}
}

// capture returns the record that client makes of text, without sending it.
func capture(t *testing.T, client *tls.Conn, text string) []byte {
	t.Helper()
	f, ok := reflect.TypeFor[tls.Conn]().FieldByName("conn")
	if !ok || f.Type != reflect.TypeFor[net.Conn]() {
		t.Fatal("a tls.Conn has no field conn any more: find another way to make a record without sending it")
	}
	at := (*net.Conn)(unsafe.Add(unsafe.Pointer(client), f.Offset))
	was := *at
	defer func() { *at = was }()
	var to recorder
	*at = &to
	if _, err := io.WriteString(client, text); err != nil {
		t.Fatal(err)
	}
	return to.Bytes()
}

type recorder struct {
	net.Conn
	bytes.Buffer
}

func (r *recorder) Write(p []byte) (int, error)      { return r.Buffer.Write(p) }
func (r *recorder) Read(p []byte) (int, error)       { return r.Buffer.Read(p) }
func (r *recorder) SetWriteDeadline(time.Time) error { return nil }

// A Conn has no write deadline. crypto/tls sets one for its close_notify, and leaves behind one that has
// passed. Later writes still succeed.
func TestNetConnHasNoWriteDeadline(t *testing.T) {
	both(t, func(t *testing.T, c *Conn, other net.Conn) {
		if _, is := any(c).(net.Conn); is {
			t.Error("a Conn is a net.Conn, and does not keep its contract")
		}
		nc := c.NetConn()
		nc.SetWriteDeadline(time.Now().Add(-time.Hour))
		go io.WriteString(nc, "late")
		wantRead(t, other, "late")
		nc.SetDeadline(time.Now().Add(-time.Hour))
		_, err := nc.Read(make([]byte, 1))
		wantError(t, err, os.ErrDeadlineExceeded)
		if nc.RemoteAddr().String() != c.RemoteAddr().String() || nc.LocalAddr().String() != c.LocalAddr().String() {
			t.Errorf("the addresses are %s and %s", nc.RemoteAddr(), nc.LocalAddr())
		}
	})
}

// A session goes on after a deadline has passed.
func TestTLSGoesOnAfterADeadline(t *testing.T) {
	eachSocket(t, func(t *testing.T, make func(*testing.T) (*Conn, *net.TCPConn)) {
		c, other := make(t)
		server, client := tlsOver(t, tls.VersionTLS13, c, other)
		p := []byte{0}
		for range 3 {
			server.SetReadDeadline(time.Now().Add(time.Millisecond))
			if n, err := server.Read(p); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(n, err)
			}
		}
		server.SetReadDeadline(time.Now().Add(patience))
		client.Write(p)
		if n, err := server.Read(p); n != 1 || err != nil {
			t.Error(n, err)
		}
	})
}
