package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

var all = NewFormat(config.AccessLog{Format: config.LogJSON, Sample: 1})

// numbered returns a record whose line has a number.
func numbered(n int) *Record {
	return &Record{Kind: "tunnel", Listener: "web", Attempts: n + 1, Origin: &conn.Origin{}, Ended: time.Now()}
}

// events count what a Writer reports.
type events struct {
	sync.Mutex
	lost     []error
	regained []int64
}

func (e *events) options(path string, buffer int64) Options {
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "x"}) }
	return Options{Path: path, Buffer: buffer, Written: counter(), Full: counter(), Failed: counter(),
		Lost:     func(err error) { e.Lock(); defer e.Unlock(); e.lost = append(e.lost, err) },
		Regained: func(n int64) { e.Lock(); defer e.Unlock(); e.regained = append(e.regained, n) }}
}

// wantCounts checks the metrics.
func wantCounts(t *testing.T, w *Writer, written, full, failed float64) {
	t.Helper()
	o := w.options
	if a, b, c := testutil.ToFloat64(o.Written), testutil.ToFloat64(o.Full), testutil.ToFloat64(o.Failed); a != written || b != full || c != failed {
		t.Errorf("%v lines were written, %v did not fit, %v failed; want %v, %v, %v", a, b, c, written, full, failed)
	}
}

// numbers returns the numbers of lines, and checks that each line is whole.
func numbers(t *testing.T, text []byte) (all []int) {
	t.Helper()
	for line := range bytes.Lines(text) {
		_, after, found := bytes.Cut(line, []byte(`"retries":`))
		n, err := strconv.Atoi(strings.TrimSuffix(string(after), "}\n"))
		if !found || err != nil || !bytes.HasPrefix(line, []byte(`{"time":`)) {
			t.Fatalf("the line %q is not whole", line)
		}
		all = append(all, n)
	}
	return all
}

func wantUpTo(t *testing.T, got []int, n int) {
	t.Helper()
	for i, x := range got {
		if x != i {
			t.Fatalf("line %d has the number %d", i, x)
		}
	}
	if len(got) != n {
		t.Fatalf("there are %d lines, not %d", len(got), n)
	}
}

// All lines of many goroutines arrive, each once and whole, and in the order of their times.
func TestLinesOfManyGoroutines(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	path := filepath.Join(t.TempDir(), "log")
	w, err := Open(new(events).options(path, 64<<20))
	if err != nil {
		t.Fatal(err)
	}
	const each = 2000
	var running sync.WaitGroup
	for g := range 16 {
		running.Go(func() {
			for i := range each {
				w.Put(all, numbered(g*each+i))
			}
		})
	}
	running.Wait()
	if lost := w.Close(); lost != 0 {
		t.Errorf("%d lines were lost", lost)
	}
	text, _ := os.ReadFile(path)
	next := make([]int, 16)
	for _, n := range numbers(t, text) {
		if g := n / each; next[g] != n%each {
			t.Fatalf("goroutine %d: line %d comes where %d is due", g, n%each, next[g])
		}
		next[n/each]++
	}
	for g, n := range next {
		if n != each {
			t.Errorf("goroutine %d has %d lines", g, n)
		}
	}
	wantCounts(t, w, 16*each, 0, 0)
	if w.Put(all, numbered(0)) {
		t.Error("a closed log takes a line")
	}
	if w.Close() != 0 {
		t.Error("closed twice")
	}
}

// A line waits a moment for others, and then all are written at once.
func TestLinesAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(recorder)
		w := newWriter(new(events).options("", 1<<20), &target{WriteCloser: to})
		go w.run()
		defer w.Close()
		for i := range 10 {
			w.Put(all, numbered(i))
			time.Sleep(time.Microsecond) // lines have different times
		}
		time.Sleep(interval - 10*time.Microsecond - 1)
		synctest.Wait()
		if n := to.count(); n != 0 {
			t.Errorf("%d writes at once", n)
		}
		time.Sleep(time.Microsecond)
		synctest.Wait()
		if n := to.count(); n != 1 {
			t.Errorf("%d writes, not one", n)
		}
		wantUpTo(t, numbers(t, to.text()), 10)
	})
}

// recorder remembers what is written to it. Each write takes what write returns.
type recorder struct {
	mu     sync.Mutex                  // guards writes and closed
	write  func(p []byte) (int, error) // nil: takes everything
	writes []string
	closed bool
}

func (r *recorder) Write(p []byte) (n int, err error) {
	if n = len(p); r.write != nil {
		n, err = r.write(p)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writes = append(r.writes, string(p[:n]))
	return n, err
}

func (r *recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.writes)
}

func (r *recorder) text() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []byte(strings.Join(r.writes, ""))
}

// While the destination takes nothing, Put does not wait, and the memory is bounded. The lines
// that do not fit are counted, and the log learns of the first and of the end.
func TestSlowDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		to := &recorder{write: func(p []byte) (int, error) { <-release; return len(p), nil }}
		e := new(events)
		const buffer = 4 * chunkSize
		w := newWriter(e.options("", buffer), &target{WriteCloser: to})
		w.stripes = w.stripes[:1] // another one would have room for more lines
		go w.run()
		n := 0
		for ; len(e.lost) == 0 && n < 1e6; n++ {
			w.Put(all, numbered(n))
			time.Sleep(time.Microsecond) // lines have different times
			synctest.Wait()
		}
		for range 100 {
			w.Put(all, numbered(-1))
		}
		synctest.Wait()
		if n, since := w.Losing(); n != 101 || !since.Equal(time.Now().Add(-time.Microsecond)) {
			t.Errorf("%d lines are said to be lost since %v", n, since)
		}
		if len(e.lost) != 1 || !errors.Is(e.lost[0], errSlow) {
			t.Errorf("the losses are %v", e.lost)
		}
		if held := w.store.held; held > buffer {
			t.Errorf("%d bytes are held, more than %d", held, buffer)
		}
		wantCounts(t, w, 0, 101, 0)
		close(release)
		synctest.Wait()
		w.Put(all, numbered(n-1))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(e.regained) != 0 {
			t.Error("the loss ended at once")
		}
		time.Sleep(lossEnds)
		w.Put(all, numbered(n))
		time.Sleep(time.Second)
		synctest.Wait()
		if n, _ := w.Losing(); n != 0 {
			t.Errorf("%d lines are said to be lost", n)
		}
		if len(e.regained) != 1 || e.regained[0] != 101 {
			t.Errorf("the ends of losses are %v", e.regained)
		}
		w.Close()
		wantUpTo(t, numbers(t, to.text()), n+1)
		wantCounts(t, w, float64(n+1), 101, 0)
	})
}

// After a line that was written in part, the next one begins on a new line.
func TestTornLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("no space left on device")
		room := 0
		to := &recorder{write: func(p []byte) (int, error) {
			n := min(len(p), room)
			if room -= n; n < len(p) {
				return n, full
			}
			return n, nil
		}}
		e := new(events)
		w := newWriter(e.options("", 1<<20), &target{WriteCloser: to})
		go w.run()
		defer w.Close()
		put := func(n, space int) {
			room = space
			for range n {
				w.Put(all, numbered(0))
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		length := len(all.Append(nil, numbered(0)))
		put(3, length+length/2) // one line fits, one in part
		put(2, 0)
		put(1, 1) // room for the end of the torn line alone
		put(1, 1e6)
		lines := strings.Split(string(to.text()), "\n")
		if len(lines) != 4 || len(lines[0]) != length-1 || len(lines[1]) != length/2 || len(lines[2]) != length-1 || lines[3] != "" {
			t.Errorf("the file has %q", lines)
		}
		wantCounts(t, w, 2, 0, 5)
		if len(e.lost) != 1 || e.lost[0] != full {
			t.Errorf("the losses are %v", e.lost)
		}
	})
}

// Lines from before a reopening are in the old file, those from after it in the new one.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w, err := Open(new(events).options(path, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		old := fmt.Sprintf("%s.%d", path, i)
		w.Put(all, numbered(i))
		if err := errors.Join(os.Rename(path, old), w.Reopen()); err != nil {
			t.Fatal(err)
		}
		if text, _ := os.ReadFile(old); fmt.Sprint(numbers(t, text)) != fmt.Sprint([]int{i}) {
			t.Errorf("file %d has %q", i, text)
		}
	}
	if err := os.Chmod(filepath.Dir(path), 0o500); err == nil && os.Getuid() != 0 {
		os.Rename(path, path+".x")
		if w.Reopen() == nil {
			t.Error("the file was opened in a folder that does not allow it")
		}
	}
	w.Close()
	if err := w.Reopen(); err != nil {
		t.Error(err)
	}
}

// A destination that takes nothing delays neither the next file nor the end by more than a moment.
func TestStuckDestination(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(path, os.O_RDWR, 0) // never reads
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	w, err := Open(new(events).options(path, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	put := func(n int) {
		for i := range n {
			w.Put(all, numbered(i))
		}
	}
	put(2000) // more than the pipe takes
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := w.Reopen(); err != nil {
		t.Fatal(err)
	}
	put(1)
	if lost := w.Close(); lost != 0 {
		t.Errorf("%d lines were lost", lost)
	}
	if text, _ := os.ReadFile(path); len(numbers(t, text)) == 0 {
		t.Error("the new file is empty")
	}
	if took := time.Since(begun); took < patience {
		t.Errorf("the pipe took all lines: %v", took)
	}
}

// Close says how many lines a destination did not take in time.
func TestStuckAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		to := &recorder{write: func(p []byte) (int, error) { <-stuck; return len(p), nil }}
		w := newWriter(new(events).options("", 1<<20), &target{WriteCloser: to})
		go w.run()
		for i := range 500 {
			w.Put(all, numbered(i))
		}
		if lost := w.Close(); lost != 500 || !to.closed {
			t.Errorf("%d lines are said to be lost; closed: %t", lost, to.closed)
		}
		close(stuck)
		synctest.Wait()
	})
}

// A line that is longer than the usual memory is written as well, unless the buffer is too small.
func TestLongLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(recorder)
		w := newWriter(new(events).options("", 1<<20), &target{WriteCloser: to})
		go w.run()
		long := NewFormat(config.AccessLog{Format: config.LogJSON, Sample: 1, MaxLine: 4 << 20})
		w.Put(long, &Record{Kind: "http", Reason: strings.Repeat("x", 200<<10)})
		w.Put(long, &Record{Kind: "http", Reason: strings.Repeat("x", 2<<20)})
		w.Put(all, numbered(0))
		w.Close()
		if lines := bytes.Count(to.text(), newline); lines != 2 || len(to.text()) < 200<<10 {
			t.Errorf("%d lines, %d bytes", lines, len(to.text()))
		}
		wantCounts(t, w, 2, 1, 0)
		if w.store.held > mostFree*chunkSize {
			t.Errorf("%d bytes are still held", w.store.held)
		}
	})
}

// A panic in a field leaves no part of a line, and no lock.
func TestPanicInALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(recorder)
		w := newWriter(new(events).options("", 1<<20), &target{WriteCloser: to})
		go w.run()
		w.Put(all, numbered(0))
		func() {
			defer func() { recover() }()
			r := numbered(1)
			r.Err = faulty{}
			w.Put(all, r)
		}()
		time.Sleep(time.Microsecond)
		w.Put(all, numbered(1))
		w.Close()
		wantUpTo(t, numbers(t, to.text()), 2)
	})
}

type faulty struct{}

func (faulty) Error() string { panic("a fault of the test") }

// Where weir's own log has the same pipe, no write has more bytes than the kernel writes at once.
func TestWritesToASharedPipe(t *testing.T) {
	r, p, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer p.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if standard(p, p).most != atOnce || standard(p, file).most != 0 || standard(file, file).most != 0 {
		t.Error("the limit is wrong")
	}
	to := new(recorder)
	w := newWriter(new(events).options("", 1<<20), &target{WriteCloser: to, most: 500})
	go w.run()
	for i := range 100 {
		w.Put(all, numbered(i))
	}
	w.Put(all, &Record{Kind: "http", Reason: strings.Repeat("x", 1000)})
	w.Close()
	for _, text := range to.writes {
		if len(text) > 500 && strings.Count(text, "\n") > 1 || !strings.HasSuffix(text, "\n") {
			t.Errorf("a write has %d bytes: %q", len(text), text)
		}
	}
	if n := strings.Count(string(to.text()), "\n"); n != 101 {
		t.Errorf("%d lines", n)
	}
}

func TestMerge(t *testing.T) {
	made := func(stripe int, lines ...string) *chunk { // a line begins with its time
		c := &chunk{stripe: stripe}
		for _, l := range lines {
			c.b = append(c.b, l...)
			c.ends, c.times = append(c.ends, len(c.b)), append(c.times, int64(l[0]))
		}
		return c
	}
	f := func(want string, chunks ...*chunk) {
		t.Helper()
		got := ""
		for m := newMerge(chunks); ; {
			lines := m.next()
			if lines == nil {
				break
			}
			got += string(lines)
		}
		if got != want {
			t.Errorf("got %q, not %q", got, want)
		}
	}
	f("abc", made(0, "a", "b"), made(0, "c"))
	f("abcdefg", made(0, "a", "b"), made(1, "c", "f"), made(0, "d", "e", "g"))
	f("abcdef", made(0, "a", "c", "e"), made(1, "b", "d", "f"))
	f("a1a2", made(0, "a1"), made(1, "a2"))
	f("caxyb", made(2, "c", "a"), made(1, "x", "y", "b")) // a stripe keeps its order
	f("abc", made(0, "c"), made(1, "b"), made(2, "a"))
}

// A line takes no memory of its own.
func TestPutAllocatesNothing(t *testing.T) {
	w, err := Open(new(events).options(os.DevNull, 16<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := sampleRecord()
	f := NewFormat(config.AccessLog{Format: config.LogJSON, Sample: 1, Redact: []string{"token"}})
	for range 10_000 {
		w.Put(f, r)
	}
	if n := testing.AllocsPerRun(10_000, func() { w.Put(f, r) }); n != 0 {
		t.Errorf("a line takes %v allocations", n)
	}
}

func BenchmarkPut(b *testing.B) {
	w := newWriter(new(events).options("", 16<<20), &target{WriteCloser: unclosed{io.Discard}})
	go w.run()
	defer w.Close()
	b.RunParallel(func(p *testing.PB) {
		r := sampleRecord()
		for p.Next() {
			w.Put(all, r)
		}
	})
}
