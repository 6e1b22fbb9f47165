package hello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// clientHello returns the first flight of a crypto/tls client.
func clientHello(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	c := &flight{}
	config.InsecureSkipVerify = true
	if err := tls.Client(c, config).Handshake(); !errors.Is(err, io.EOF) {
		t.Fatalf("the client stopped with %v, want the end of the stream", err)
	}
	return c.sent.Bytes()
}

// flight is a connection to a peer that never answers.
type flight struct {
	recorder
	sent bytes.Buffer
}

func (f *flight) Read([]byte) (int, error)    { return 0, io.EOF }
func (f *flight) Write(p []byte) (int, error) { return f.sent.Write(p) }

// records splits the handshake message of a ClientHello in one record into pieces, each
// in its own record.
func records(t testing.TB, hello []byte, cuts ...int) []byte {
	t.Helper()
	if int(binary.BigEndian.Uint16(hello[3:])) != len(hello)-5 {
		t.Fatal("the hello to cut is not one record")
	}
	var out []byte
	message := hello[5:]
	from := 0
	for _, to := range append(cuts, len(message)) {
		out = append(out, hello[:3]...)
		out = binary.BigEndian.AppendUint16(out, uint16(to-from))
		out = append(out, message[from:to]...)
		from = to
	}
	return out
}

func TestRead(t *testing.T) {
	f := func(name string, config *tls.Config, want Info) {
		t.Helper()
		stream := clientHello(t, config)
		got, taken, err := Read(bytes.NewReader(stream), 0)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if got.ServerName != want.ServerName || !slices.Equal(got.ALPN, want.ALPN) || !slices.Equal(got.Versions, want.Versions) {
			t.Errorf("%s: read %+v, want %+v", name, got, want)
		}
		if len(got.CipherSuites) == 0 {
			t.Errorf("%s: no cipher suites were read", name)
		}
		if !bytes.Equal(taken, stream) {
			t.Errorf("%s: %d bytes were taken, want the %d that were sent, unchanged", name, len(taken), len(stream))
		}
	}
	modern := []uint16{tls.VersionTLS13, tls.VersionTLS12}
	f("name", &tls.Config{ServerName: "app.example.org"}, Info{ServerName: "app.example.org", Versions: modern})
	f("case", &tls.Config{ServerName: "APP.Example.ORG"}, Info{ServerName: "app.example.org", Versions: modern})
	f("no name", &tls.Config{}, Info{Versions: modern})
	f("an address is no name", &tls.Config{ServerName: "192.0.2.1"}, Info{Versions: modern})
	f("alpn", &tls.Config{ServerName: "a.b", NextProtos: []string{"h2", "http/1.1"}},
		Info{ServerName: "a.b", ALPN: []string{"h2", "http/1.1"}, Versions: modern})
	f("1.0 alone", &tls.Config{ServerName: "old.example.org", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
		Info{ServerName: "old.example.org", Versions: []uint16{tls.VersionTLS10}})
	f("1.0 to 1.2", &tls.Config{ServerName: "old.example.org", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS12},
		Info{ServerName: "old.example.org", Versions: []uint16{tls.VersionTLS12, tls.VersionTLS11, tls.VersionTLS10}})
}

// postQuantum is a ClientHello that is too long for one segment of a usual network.
func postQuantum(t testing.TB) []byte {
	stream := clientHello(t, &tls.Config{
		ServerName:       "pq.example.org",
		CurvePreferences: []tls.CurveID{tls.X25519MLKEM768, tls.X25519},
		NextProtos:       []string{"h2", "http/1.1", strings.Repeat("a", 200)},
	})
	if len(stream) <= 1460 {
		t.Fatalf("the hello has %d bytes, want more than one segment of 1460", len(stream))
	}
	return stream
}

// A ClientHello split by the network or by the client's TCP stack must not be read as one
// without a name.
func TestReadInAnyPieces(t *testing.T) {
	const more = "what the client sends after its hello"
	f := func(what string, cut int, r io.Reader, stream []byte) {
		t.Helper()
		info, taken, err := Read(r, 0)
		if err != nil {
			t.Fatalf("%s cut at %d: %v", what, cut, err)
		}
		if info.ServerName != "pq.example.org" || len(info.ALPN) != 3 {
			t.Fatalf("%s cut at %d: read %+v", what, cut, info)
		}
		rest, _ := io.ReadAll(r)
		if got := append(taken, rest...); !bytes.Equal(got, stream) {
			t.Fatalf("%s cut at %d: taken and left bytes together are not the stream", what, cut)
		}
	}
	hello := postQuantum(t)
	stream := append(bytes.Clone(hello), more...)
	f("byte by byte", 0, iotest.OneByteReader(bytes.NewReader(stream)), stream)
	f("data with error", 0, iotest.DataErrReader(bytes.NewReader(stream)), stream)
	for cut := 1; cut < len(hello); cut++ {
		f("segments", cut, io.MultiReader(bytes.NewReader(stream[:cut]), bytes.NewReader(stream[cut:])), stream)
	}
	for cut := 1; cut < len(hello)-5; cut++ {
		cutStream := append(records(t, hello, cut), more...)
		f("records", cut, bytes.NewReader(cutStream), cutStream)
		f("records and segments", cut, iotest.HalfReader(bytes.NewReader(cutStream)), cutStream)
	}
	every := make([]int, len(hello)-6)
	for i := range every {
		every[i] = i + 1
	}
	tiny := records(t, hello, every...)
	f("a record a byte", 0, iotest.OneByteReader(bytes.NewReader(tiny)), tiny)
}

func TestReadRefuses(t *testing.T) {
	hello := clientHello(t, &tls.Config{ServerName: "app.example.org"})
	f := func(name string, r io.Reader, max int, want error) {
		t.Helper()
		info, taken, err := Read(r, max)
		if err == nil || taken != nil || info.ServerName != "" {
			t.Errorf("%s: got %+v, %d bytes, error %v; want an error alone", name, info, len(taken), err)
			return
		}
		if want != nil && !errors.Is(err, want) {
			t.Errorf("%s: error %v, want one that is %v", name, err, want)
		}
	}
	f("nothing", strings.NewReader(""), 0, io.EOF)
	for cut := 1; cut < len(hello); cut++ {
		f("cut short", bytes.NewReader(hello[:cut]), 0, io.ErrUnexpectedEOF)
	}
	f("too long", bytes.NewReader(hello), len(hello)-1, ErrTooLong)
	f("a deadline", io.MultiReader(bytes.NewReader(hello[:20]), iotest.ErrReader(os.ErrDeadlineExceeded)), 0, os.ErrDeadlineExceeded)
	f("a reader that is stuck", stuck{}, 0, io.ErrNoProgress)
	f("plain HTTP", strings.NewReader("GET / HTTP/1.1\r\nHost: app.example.org\r\n\r\n"), 0, nil)
	f("SSH", strings.NewReader("SSH-2.0-OpenSSH_9.2\r\n"), 0, nil)
	f("a late PROXY header", strings.NewReader("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c"), 0, nil)
	f("SSLv2", strings.NewReader("\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10"), 0, nil)
	f("SSLv2 to the end of its fixed part", strings.NewReader("\x80\x09\x01\x03\x01\x00\x00\x00\x00\x00\x00"), 0, nil)
	f("endless warnings", repeated("\x15\x03\x01\x00\x02\x01\x5a"), 0, nil)
	f("endless empty records", repeated("\x16\x03\x01\x00\x00"), 0, nil)
	f("a hello that claims 16 MiB", strings.NewReader("\x16\x03\x01\x00\x05\x01\xff\xff\xff\x03"), 0, nil)

	dotted := bytes.Replace(hello, []byte("app.example.org"), []byte("app.example.or."), 1)
	f("a name that ends in a dot (RFC 6066, section 3)", bytes.NewReader(dotted), 0, nil)

	var record tls.RecordHeaderError
	if _, _, err := Read(strings.NewReader("GET / HTTP/1.1\r\n"), 0); !errors.As(err, &record) {
		t.Errorf("plain HTTP: error %v, want a RecordHeaderError in it", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// repeated is an endless stream of s.
func repeated(s string) io.Reader { return &endless{s: s} }

type endless struct {
	s string
	i int
}

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = e.s[e.i%len(e.s)]
		e.i++
	}
	return len(p), nil
}

func TestReadWritesNothingAndLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, stream := range [][]byte{clientHello(t, &tls.Config{ServerName: "a.b"}), []byte("GET / HTTP/1.1\r\n\r\n")} {
		client, server := net.Pipe()
		done := make(chan error, 1)
		go func() {
			_, err := client.Write(stream)
			client.Close()
			done <- err
		}()
		// A write would block, because no goroutine reads from the other end. The
		// deadline would end it.
		server.SetDeadline(time.Now().Add(10 * time.Second))
		_, _, err := Read(server, 0)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the reading waited for its peer to read")
		}
		if _, err := io.Copy(io.Discard, server); err != nil {
			t.Errorf("the connection is not usable after the hello: %v", err)
		}
		<-done
		server.Close()
	}
	// On a busy machine a goroutine that has done its work may still be about to end.
	for begun := time.Now(); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Since(begun) > 10*time.Second {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestName(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := Name(in); got != want {
			t.Errorf("Name(%q) = %q, want %q", in, got, want)
		}
	}
	f("", "")
	f("app.example.org", "app.example.org")
	f("App.EXAMPLE.org.", "app.example.org")
	f("x..", "x.")
	f("\u212Aelvin.example", "\u212Aelvin.example")
	f("ÄPFEL.example", "Äpfel.example")
	if n := testing.AllocsPerRun(100, func() { Name("app.example.org") }); n != 0 {
		t.Errorf("Name allocates %v times for a name that is spelt right", n)
	}
}

// FuzzRead compares Read with a complete tls.Server. The Info must be equal to what the
// handshake sees. A stream that Read refuses must not reach GetConfigForClient.
func FuzzRead(f *testing.F) {
	hello := clientHello(f, &tls.Config{ServerName: "App.example.org", NextProtos: []string{"http/1.1"}})
	f.Add(hello, 1)
	f.Add(records(f, hello, 1, 4, 50), 3)
	f.Add(clientHello(f, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}), 7)
	f.Add(append([]byte("\x15\x03\x01\x00\x02\x01\x5a"), hello...), 9)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), 2)
	f.Add(sslv2Hello(3, 1, 0, 32, 0x2f, 0x05, 0x0a), 1)
	f.Add(sslv2Hello(3, 1, 0, 16, make([]int, 80)...), 4)
	f.Add(sslv2Hello(0, 2, 16, 16, 0x010080), 0)
	f.Add(sslv2Hello(3, 1, 0, 32), 1)
	f.Add(sslv2Hello(3, 1, 0, 0, 0x2f), 5)
	f.Add([]byte("\x80\x00\x01\x03\x01"), 0)
	f.Fuzz(func(t *testing.T, stream []byte, step int) {
		if len(stream) > DefaultMax {
			return
		}
		src := bytes.NewReader(stream)
		info, taken, err := Read(&steps{r: src, step: step}, 0)

		replay := stream
		if err == nil {
			rest, _ := io.ReadAll(src)
			replay = append(bytes.Clone(taken), rest...)
			if !bytes.Equal(replay, stream) {
				t.Fatal("taken and left bytes together are not the stream")
			}
		}
		var seen *tls.ClientHelloInfo
		server := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = h
			return nil, io.EOF
		}}
		tls.Server(&recorder{r: bytes.NewReader(replay), max: len(replay) + 1}, server).Handshake()
		if info.SSLv2 {
			// crypto/tls refuses it, so the other fields are empty.
			if err != nil || seen != nil || !BeginsSSLv2(stream) || stream[0] == 0x16 || !reflect.DeepEqual(info, Info{SSLv2: true}) {
				t.Fatalf("Read says %+v, %v, the handshake saw %v", info, err, seen)
			}
			length := 2 + int(binary.BigEndian.Uint16(stream)&0x7fff)
			if length > len(stream) {
				t.Fatalf("%d bytes are a hello of %d", len(stream), length)
			}
			return
		}
		if (seen != nil) != (err == nil) {
			t.Fatalf("Read says %v, the handshake saw a hello: %v", err, seen != nil)
		}
		if seen != nil && (info.ServerName != Name(seen.ServerName) || !slices.Equal(info.ALPN, seen.SupportedProtos) ||
			!slices.Equal(info.Versions, seen.SupportedVersions) || !slices.Equal(info.CipherSuites, seen.CipherSuites)) {
			t.Fatalf("Read says %+v, the handshake saw %+v", info, seen)
		}
	})
}

// steps reads at most step bytes at a time.
type steps struct {
	r    io.Reader
	step int
}

func (s *steps) Read(p []byte) (int, error) {
	if s.step > 0 && s.step < len(p) {
		p = p[:s.step]
	}
	return s.r.Read(p)
}

func BenchmarkRead(b *testing.B) {
	stream := clientHello(b, &tls.Config{ServerName: "app.example.org", NextProtos: []string{"h2", "http/1.1"}})
	b.ReportAllocs()
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		if _, _, err := Read(bytes.NewReader(stream), 0); err != nil {
			b.Fatal(err)
		}
	}
}
