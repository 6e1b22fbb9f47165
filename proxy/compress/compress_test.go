package compress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// received is a destination.
type received struct {
	bytes.Buffer
	pieces int
	err    error
}

func (r *received) WriteBody(p []byte) error {
	r.pieces++
	r.Write(p)
	return r.err
}

var all = []Coding{Zstd, Brotli, Gzip}

// decoder decodes with the library of the coding. The real clients are in e2e.
func decoder(t testing.TB, c Coding, r io.Reader) io.Reader {
	t.Helper()
	var err error
	switch c {
	case Zstd:
		r, err = zstd.NewReader(r)
	case Brotli:
		r = brotli.NewReader(r)
	case Gzip:
		r, err = gzip.NewReader(r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func text(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, `{"id": %d, "name": "user %d", "active": %t}`+"\n", i, i*7919%1000, i%3 == 0)
	}
	return b.String()[:n]
}

func TestEncodes(t *testing.T) {
	for _, c := range all {
		for _, n := range []int{0, 1, 1000, 10 << 10, 300 << 10, 3 << 20} {
			for range 2 { // the second time with an encoder that was used
				var got received
				e, want := Get(c, &got), text(n)
				for rest := want; len(rest) > 0; {
					k := min(len(rest), 16<<10)
					if _, err := e.Write([]byte(rest[:k])); err != nil {
						t.Fatal(err)
					}
					rest = rest[k:]
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				if err := e.Flush(); err != nil {
					t.Errorf("%v: a flush after the end: %v", c, err)
				}
				in, out := e.Transferred()
				if in != int64(n) || out != int64(got.Len()) || n >= 1000 && out*2 > in {
					t.Errorf("%v: %d bytes of %d become %d of %d", c, in, n, out, got.Len())
				}
				e.Release()
				if back, err := io.ReadAll(decoder(t, c, &got)); err != nil || string(back) != want {
					t.Errorf("%v: %d bytes come back as %d: %v", c, n, len(back), err)
				}
			}
		}
	}
}

// A client can decode what was written before a flush.
func TestFlushes(t *testing.T) {
	for _, c := range all {
		pr, pw := io.Pipe()
		go func() {
			e := Get(c, pipe{pw})
			defer e.Release()
			for _, part := range []string{"data: one\n\n", "data: two\n\n"} {
				io.WriteString(e, part)
				e.Flush()
				e.Flush()
			}
			e.Close()
			pw.Close()
		}()
		r := decoder(t, c, pr)
		for _, want := range []string{"data: one\n\n", "data: two\n\n"} {
			got := make([]byte, len(want))
			if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
				t.Errorf("%v: %q, %v", c, got, err)
			}
		}
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("%v: the rest is %q, %v", c, rest, err)
		}
	}
}

type pipe struct{ io.Writer }

func (p pipe) WriteBody(b []byte) error {
	_, err := p.Write(b)
	return err
}

func TestFlushOfNothingWritesNothing(t *testing.T) {
	for _, c := range all {
		var got received
		e := Get(c, &got)
		e.Flush()
		io.WriteString(e, "a")
		e.Flush()
		n := got.Len()
		if e.Flush(); got.Len() != n {
			t.Errorf("%v: a second flush writes %d bytes", c, got.Len()-n)
		}
		e.Release()
	}
}

// An encoder whose client is gone returns the error, and works for the next client.
func TestAbortedBodies(t *testing.T) {
	broken := errors.New("the client is gone")
	for _, c := range all {
		for range 3 {
			gone := received{err: broken}
			e := Get(c, &gone)
			io.WriteString(e, text(100<<10))
			if err := e.Flush(); !errors.Is(err, broken) {
				t.Errorf("%v: flushing returns %v", c, err)
			}
			e.Release()
			var got received
			e = Get(c, &got)
			io.WriteString(e, "hello")
			if err := e.Close(); err != nil {
				t.Errorf("%v: the next body: %v", c, err)
			}
			e.Release()
			if back, err := io.ReadAll(decoder(t, c, &got)); err != nil || string(back) != "hello" {
				t.Errorf("%v: the next body is %q: %v", c, back, err)
			}
		}
	}
}

// An encoder holds no more than what is charged for it.
func TestMemoryOfEncoders(t *testing.T) {
	body := []byte(text(4 << 20))
	for _, c := range all {
		const n = 4
		var held [n]*Encoder
		var before, after runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range held {
			held[i] = newEncoder(c)
			held[i].to.destination = discard{}
			held[i].codec.Reset(&held[i].to)
			for rest := body; len(rest) > 0; rest = rest[min(len(rest), 16<<10):] {
				held[i].Write(rest[:min(len(rest), 16<<10)])
			}
		}
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&after)
		each := int(after.HeapAlloc-before.HeapAlloc) / n
		t.Logf("%v: %d KiB", c, each>>10)
		if each > c.Memory() {
			t.Errorf("%v: an encoder holds %d bytes, more than %d", c, each, c.Memory())
		}
		runtime.KeepAlive(held)
	}
}

type discard struct{}

func (discard) WriteBody([]byte) error { return nil }

func TestEncodingAllocatesNothing(t *testing.T) {
	body := []byte(text(10 << 10))
	for _, c := range []Coding{Zstd, Gzip} {
		f := func() {
			e := Get(c, discard{})
			e.Write(body)
			e.Close()
			e.Release()
		}
		f()
		if n := testing.AllocsPerRun(20, f); n > 0.5 && !raceEnabled {
			t.Errorf("%v: encoding allocates %v times", c, n)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	body := []byte(text(10 << 10))
	for _, c := range all {
		b.Run(c.String(), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for range b.N {
				e := Get(c, discard{})
				e.Write(body)
				e.Close()
				e.Release()
			}
		})
	}
}

func TestChoosesCodings(t *testing.T) {
	f := func(want Coding, values ...string) {
		t.Helper()
		var p Preference
		for _, v := range values {
			p.Add([]byte(v))
		}
		if got := p.Choose(); got != want {
			t.Errorf("%q: %v, not %v", values, got, want)
		}
	}
	f(Identity)
	f(Identity, "")
	f(Gzip, "gzip")
	f(Gzip, "GZIP, deflate")
	f(Gzip, "x-gzip")
	f(Brotli, "gzip, deflate, br")
	f(Zstd, "gzip, deflate, br, zstd")
	f(Zstd, "gzip", "zstd")
	f(Gzip, "gzip;q=1.0, br;q=0.9, zstd;q=0.5")
	f(Gzip, "gzip ; q=0.002, br ; Q=0.001")
	f(Brotli, "zstd;q=0, *")
	f(Zstd, "*")
	f(Gzip, "*;q=0.1, gzip;q=0.2")
	f(Identity, "*;q=0")
	f(Identity, "gzip;q=0")
	f(Identity, "gzip;q=0.5, identity")
	f(Gzip, "gzip;q=0.5, identity;q=0.5")
	f(Gzip, "gzip;q=0.5, identity;q=0.4")
	f(Identity, "identity;q=0")
	f(Identity, "gzip;q=0, identity;q=0")
	f(Identity, "gzip;q=2, br;q=, zstd;q=0.1234")
	f(Identity, "gzip;level=1")
	f(Identity, "deflate, compress, gzipped")
}

func FuzzPreference(f *testing.F) {
	f.Add("gzip;q=0.5, br;q=1.0, *;q=0")
	f.Add("zstd ;q=0.001,identity;q=0,,;q=1")
	f.Fuzz(func(t *testing.T, value string) {
		var p Preference
		p.Add([]byte(value))
		c := p.Choose()
		if c == Identity {
			return
		}
		if lower := strings.ToLower(value); !strings.Contains(lower, c.String()) && !strings.Contains(lower, "*") {
			t.Errorf("%q: %v", value, c)
		}
	})
}
