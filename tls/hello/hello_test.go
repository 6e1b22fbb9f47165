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
	replay
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
	f := func(name string, config *tls.Config, want string) {
		t.Helper()
		stream := clientHello(t, config)
		got, taken, err := Read(bytes.NewReader(stream), 0)
		if err != nil || got.ServerName != want {
			t.Errorf("%s: read %q, %v, want %q", name, got.ServerName, err, want)
		}
		if !bytes.Equal(taken, stream) {
			t.Errorf("%s: %d bytes were taken, want the %d that were sent, unchanged", name, len(taken), len(stream))
		}
	}
	f("name", &tls.Config{ServerName: "app.example.org"}, "app.example.org")
	f("case", &tls.Config{ServerName: "APP.Example.ORG"}, "app.example.org")
	f("no name", &tls.Config{}, "")
	f("an address is no name", &tls.Config{ServerName: "192.0.2.1"}, "")
	f("alpn", &tls.Config{ServerName: "a.b", NextProtos: []string{"h2", "http/1.1"}}, "a.b")
	f("1.0 alone", &tls.Config{ServerName: "old.example.org", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10}, "old.example.org")
	f("1.0 to 1.2", &tls.Config{ServerName: "old.example.org", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS12}, "old.example.org")
}

// made returns a ClientHello in one record, with these extensions: each is a number of two bytes and
// its content.
func made(extensions ...string) []byte {
	body := []byte("\x03\x03" + strings.Repeat("r", 32) + "\x00" + "\x00\x02\xc0\x2f" + "\x01\x00")
	var all []byte
	for _, x := range extensions {
		all = append(all, x[:2]...)
		all = binary.BigEndian.AppendUint16(all, uint16(len(x)-2))
		all = append(all, x[2:]...)
	}
	body = append(binary.BigEndian.AppendUint16(body, uint16(len(all))), all...)
	message := binary.BigEndian.AppendUint32(nil, typeHello<<24|uint32(len(body)))
	message = append(message, body...)
	return append(binary.BigEndian.AppendUint16([]byte("\x16\x03\x01"), uint16(len(message))), message...)
}

// sni returns the extension with these names.
func sni(names ...string) string {
	var list []byte
	for _, name := range names {
		list = append(binary.BigEndian.AppendUint16(append(list, 0), uint16(len(name))), name...)
	}
	return string(append(binary.BigEndian.AppendUint16([]byte("\x00\x00"), uint16(len(list))), list...))
}

const (
	groups     = "\x00\x0a\x00\x02\x00\x1d"
	brokenALPN = "\x00\x10\x00\x03\x05h2"
	unknown    = "\x7a\x7a?"
)

// Passthrough does not judge a ClientHello: the endpoint may accept what crypto/tls refuses.
func TestReadIsLenientInAllButTheName(t *testing.T) {
	const app = "app.example.org"
	f := func(what string, stream []byte, want, fault string) {
		t.Helper()
		info, taken, err := Read(bytes.NewReader(stream), 0)
		if err != nil || info.ServerName != want || !bytes.Equal(taken, stream) {
			t.Errorf("%s: read %+v, %d of %d bytes, %v; want the name %q", what, info, len(taken), len(stream), err, want)
		}
		if got := Fault(stream[recordHeader:]); !strings.Contains(got, fault) || fault == "" && got != "" {
			t.Errorf("%s: the fault is %q, want %q", what, got, fault)
		}
	}
	f("nothing odd", made(sni(app), groups), app, "")
	f("no extensions", made(), "", "")
	f("a trailing dot", made(sni(app+".")), app, "an SNI that ends with a dot")
	f("one name twice", made(sni(app, strings.ToUpper(app)+".")), app, "an SNI that ends with a dot")
	f("one extension twice", made(sni(app), sni(app)), app, "the extension SNI (0) twice")
	f("another extension twice", made(groups, sni(app), groups), app, "the extension supported_groups (10) twice")
	f("unknown extensions", made(unknown, sni(app), unknown+"!"), app, "the extension 31354 twice")
	f("broken ALPN", made(sni(app), brokenALPN, groups), app, "a malformed extension ALPN (16)")
	f("broken groups", made("\x00\x0a\x00\x09", sni(app)), app, "a malformed extension supported_groups (10)")
	f("two broken extensions", made("\x00\x0a\x00\x09", sni(app), brokenALPN), app, "")
	f("broken ECH", made(sni(app), "\xfe\x0d\x05"), app, "a malformed extension encrypted_client_hello (65037)")
	f("no name of a host", made("\x00\x00\x00\x05\x07\x00\x02xy"), "", "")
}

// A name that two programs could read differently closes the connection.
func TestReadRefusesDoubtfulNames(t *testing.T) {
	f := func(what string, extensions ...string) {
		t.Helper()
		if info, _, err := Read(bytes.NewReader(made(extensions...)), 0); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: read %+v, %v", what, info, err)
		}
	}
	f("two names", sni("a.example", "b.example"))
	f("two extensions", sni("a.example"), sni("b.example"))
	f("a name and none", sni("a.example"), "\x00\x00\x00\x05\x07\x00\x02xy")
	f("none and a name", "\x00\x00\x00\x05\x07\x00\x02xy", sni("a.example"))
	f("an empty extension", "\x00\x00")
	f("an empty list", "\x00\x00\x00\x00")
	f("an empty name", sni(""))
	f("only a dot", sni("."))
	f("two dots", sni("a.example.."))
	f("a NUL", sni("a.example\x00.b.example"))
	f("a space", sni("a.example b"))
	f("letters beyond ASCII", sni("\u212Aelvin.example"))
	f("bytes behind the list", sni("a.example")+"x")
	f("a list that is too long", "\x00\x00\x00\x20\x00\x00\x01a")
	f("a name that is too long", "\x00\x00\x00\x04\x00\x00\x09a")
	behind := made(sni("a.example"))
	behind = append(behind, 'x')
	binary.BigEndian.PutUint16(behind[3:], uint16(len(behind)-recordHeader))
	behind[8]++ // the message is longer than its parts
	if _, _, err := Read(bytes.NewReader(behind), 0); !errors.Is(err, ErrMalformed) {
		t.Errorf("bytes behind the extensions: %v", err)
	}
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
		if info.ServerName != "pq.example.org" {
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
	f("a close_notify", strings.NewReader("\x15\x03\x01\x00\x02\x01\x00"), 0, io.EOF)
	f("an alert", strings.NewReader("\x15\x03\x01\x00\x02\x02\x28"), 0, tls.AlertError(40))

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

// FuzzRead compares Read with a complete tls.Server: if both accept a stream, they see the same
// name. A stream whose ClientHello only Read refuses has a doubtful name.
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
	f.Add(made(sni("a.example."), brokenALPN, groups), 1)
	f.Add(made(sni("a.example"), sni("b.example"), unknown), 0)
	f.Add(made(sni("a\x00.example")), 0)
	f.Fuzz(func(t *testing.T, stream []byte, step int) {
		if len(stream) > DefaultMax {
			return
		}
		src := bytes.NewReader(stream)
		info, taken, err := Read(&steps{r: src, step: step}, 0)

		again := stream
		if err == nil {
			rest, _ := io.ReadAll(src)
			again = append(bytes.Clone(taken), rest...)
			if !bytes.Equal(again, stream) {
				t.Fatal("taken and left bytes together are not the stream")
			}
		}
		var seen *tls.ClientHelloInfo
		server := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = h
			return nil, io.EOF
		}}
		tls.Server(&replay{r: bytes.NewReader(again)}, server).Handshake()
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
		switch {
		case seen == nil:
		case err == nil && info.ServerName != Name(seen.ServerName):
			t.Fatalf("Read says %+v, the handshake saw %q", info, seen.ServerName)
		case err != nil && !(errors.Is(err, ErrMalformed) && seen.ServerName != "" && !readsOneWay([]byte(seen.ServerName))):
			t.Fatalf("Read says %v, the handshake saw %q", err, seen.ServerName)
		}
		if err == nil {
			Fault(taken[min(len(taken), recordHeader):])
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

// Fault does a handshake for each extension. Strangers choose how many there are, so it looks only at few.
func TestFaultOfManyExtensions(t *testing.T) {
	f := func(others int, want string) {
		t.Helper()
		all := []string{sni("app.example.org"), groups, brokenALPN}
		for n := range others {
			all = append(all, string(binary.BigEndian.AppendUint16(nil, uint16(0x1000+n))))
		}
		if got := Fault(made(all...)[recordHeader:]); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("with %d other extensions, the fault is %q", others, got)
		}
	}
	f(maxLeftOut-3, "a malformed extension ALPN (16)")
	f(maxLeftOut-2, "")
	f(2000, "")
}
