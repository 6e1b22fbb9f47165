package accesslog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weirproxy/weir/disk"
)

// The times of a Writer.
const (
	// interval is how long a line waits for more lines, so that one system call writes all.
	interval = 100 * time.Millisecond
	// patience limits the wait for a slow destination when it is opened again, and when the log
	// is closed.
	patience = 2 * time.Second
	// lossEnds is how long no line must be lost before the loss has ended. On a disk that is
	// almost full, some lines fit and others do not.
	lossEnds = 10 * time.Second
)

// Writer writes lines to a file or a standard stream, in batches. Any number of goroutines may
// call Put at the same time: they write to several stripes, each with its own memory. One
// goroutine writes what is in the stripes to the destination. If the destination is slow, lines
// wait in memory up to a limit; then they are dropped and counted.
type Writer struct {
	options Options
	path    string // empty: a standard stream
	to      atomic.Pointer[target]
	opening sync.Mutex // held while the file is opened again

	stripes []stripe
	near    sync.Pool // of *stripe: the one that this processor used last
	next    atomic.Uint32
	store   store

	waiting atomic.Bool   // the writing goroutine knows that there are lines
	wake    chan struct{} // a first line is there
	filled  chan struct{} // a chunk is full
	asked   chan chan struct{}
	closed  atomic.Bool
	closing chan struct{} // closed by Close
	ended   chan struct{}

	merged []byte // memory of the writing goroutine
	torn   *target

	losing atomic.Bool
	began  atomic.Int64 // when the loss began, in Unix nanoseconds
	lost   atomic.Int64 // lines since the loss began
	last   atomic.Int64 // when a line was lost last, in Unix nanoseconds
}

// Options are the surroundings of a Writer.
type Options struct {
	// Path is a file, "stdout" or "stderr".
	Path string
	// OpenFile opens the file at Path; nil: OpenFile of this package.
	OpenFile func(path string) (*os.File, error)
	// Buffer limits the bytes of lines that wait for the destination.
	Buffer int64
	// Lost is called when lines begin to be lost, and Regained when they are written again.
	Lost     func(err error)
	Regained func(lost int64)
	// Written counts lines. Full and Failed count the lines that were dropped because Buffer
	// was full, and because the destination refused them.
	Written, Full, Failed prometheus.Counter
}

// target is what a Writer writes to.
type target struct {
	io.WriteCloser
	most int // bytes in one write, unless a single line is longer; 0: any number
}

// errClosed means that the stripe takes no more lines.
var errClosed = errors.New("closed")

// errSlow is the cause of a loss without an error of the destination.
var errSlow = errors.New("its destination does not take the lines in time, and the buffer is full (access_log.buffer)")

// Open opens the destination, and returns a Writer for it. The caller closes the Writer.
func Open(o Options) (*Writer, error) {
	if o.OpenFile == nil {
		o.OpenFile = OpenFile
	}
	to := &target{}
	path := ""
	switch o.Path {
	case "stdout":
		to = standard(os.Stdout, os.Stderr)
	case "stderr":
		to = standard(os.Stderr, os.Stdout)
	default:
		path = o.Path
		f, err := o.OpenFile(path)
		if err != nil {
			return nil, err
		}
		to.WriteCloser = f
	}
	w := newWriter(o, to)
	w.path = path
	go w.run()
	return w, nil
}

func newWriter(o Options, to *target) *Writer {
	w := &Writer{options: o, stripes: make([]stripe, runtime.GOMAXPROCS(0)), wake: make(chan struct{}, 1), filled: make(chan struct{}, 1),
		asked: make(chan chan struct{}), closing: make(chan struct{}), ended: make(chan struct{})}
	w.store.limit = o.Buffer
	for i := range w.stripes {
		w.stripes[i].index = i
	}
	w.near.New = func() any { return &w.stripes[int(w.next.Add(1))%len(w.stripes)] }
	w.to.Store(to)
	return w
}

// OpenFile opens a file for lines. It opens a named pipe for reading, too: otherwise it would wait until
// another program reads the pipe, and weir would not start. So lines wait in the pipe. It follows a symbolic
// link only if it belongs to root or to the user of this process.
func OpenFile(path string) (*os.File, error) {
	how := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	info, err := os.Stat(path)
	isPipe := err == nil && info.Mode()&os.ModeNamedPipe != 0
	if isPipe {
		how = os.O_RDWR
	}
	f, err := disk.OpenFile(path, how, 0o640)
	if isPipe && errors.Is(err, fs.ErrPermission) {
		f, err = disk.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, syscall.ENXIO) {
			err = fmt.Errorf("%s is a named pipe that no program reads, and weir may not read it itself; start the reader first, or permit the user of weir to read the pipe", path)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the access log (access_log.path): %w", err)
	}
	return f, nil
}

// standard returns a standard stream, which is never closed. If weir's own log goes to the same
// pipe or terminal, a write must have no more bytes than the kernel writes at once. Otherwise a
// line of the other log could appear within a line.
func standard(stream, other *os.File) *target {
	to := &target{WriteCloser: unclosed{stream}}
	mine, err := stream.Stat()
	theirs, err2 := other.Stat()
	if err == nil && err2 == nil && !mine.Mode().IsRegular() && os.SameFile(mine, theirs) {
		to.most = atOnce
	}
	return to
}

// atOnce is PIPE_BUF of Linux (pipe(7)).
const atOnce = 4096

type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// Put writes the line of a record, if the format wants one. It does not wait for the
// destination. It returns false if the Writer was closed.
func (w *Writer) Put(f *Format, r *Record) bool {
	share, chosen := f.share(r)
	if !chosen {
		return true
	}
	if w.closed.Load() {
		return false
	}
	s := w.near.Get().(*stripe)
	err := s.put(w, f, r, share)
	w.near.Put(s)
	if err == errClosed {
		return false
	}
	if err != nil {
		w.lose(1, err, w.options.Full)
	}
	if !w.waiting.Load() && w.waiting.CompareAndSwap(false, true) {
		signal(w.wake)
	}
	return true
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// lose counts lines, and reports the first loss. It does not wait for the log either.
func (w *Writer) lose(n int, err error, reason prometheus.Counter) {
	reason.Add(float64(n))
	w.lost.Add(int64(n))
	w.last.Store(time.Now().UnixNano())
	if w.losing.Load() {
		return
	}
	w.began.Store(time.Now().UnixNano()) // before losing, for Losing
	if w.losing.CompareAndSwap(false, true) {
		go w.options.Lost(err)
	}
}

// run is the writing goroutine.
func (w *Writer) run() {
	defer close(w.ended)
	for {
		var done chan struct{}
		select {
		case <-w.wake:
			done = w.gather()
		case <-w.filled:
		case done = <-w.asked:
		case <-w.closing:
			w.flush(true)
			return
		}
		w.flush(false)
		if done != nil {
			close(done)
		}
	}
}

// gather waits for more lines, until it is time to write.
func (w *Writer) gather() (asked chan struct{}) {
	t := time.NewTimer(interval)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.filled:
	case asked = <-w.asked:
	case <-w.closing:
	}
	return asked
}

// flush writes what is in the stripes.
func (w *Writer) flush(last bool) {
	w.waiting.Store(false)
	chunks := takeAll(w, last, w.store.takeFull)
	if len(chunks) == 0 {
		return
	}
	if sameStripe(chunks) {
		for _, c := range chunks {
			w.write(c.b)
		}
	} else {
		w.merge(chunks)
	}
	w.store.release(chunks)
}

// takeAll takes the lines of all stripes, and returns what take returns. It holds the locks of
// all stripes meanwhile, so that no line comes before an earlier one. If it is the last time,
// the stripes take no more lines.
func takeAll[T any](w *Writer, last bool, take func() T) T {
	for i := range w.stripes {
		w.stripes[i].mu.Lock()
		defer w.stripes[i].mu.Unlock()
	}
	for i := range w.stripes {
		w.stripes[i].handOver(w, last)
	}
	return take()
}

// merge writes the lines of several stripes in the order of their times.
func (w *Writer) merge(chunks []*chunk) {
	out := w.merged[:0]
	for m := newMerge(chunks); ; {
		lines := m.next()
		if lines == nil {
			break
		}
		if len(out) > 0 && len(out)+len(lines) > chunkSize {
			w.write(out)
			out = out[:0]
		}
		out = append(out, lines...)
	}
	w.write(out)
	if cap(out) <= 2*chunkSize {
		w.merged = out
	}
}

// write writes whole lines. Lines that cannot be written are dropped.
func (w *Writer) write(b []byte) {
	to := w.to.Load()
	for len(b) > 0 {
		part := b
		if to.most > 0 {
			part = wholeLines(b, to.most)
		}
		b = b[len(part):]
		w.writeTo(to, part)
	}
}

// wholeLines returns as many lines as fit into n bytes, and one at least.
func wholeLines(b []byte, n int) []byte {
	if len(b) <= n {
		return b
	}
	if end := bytes.LastIndexByte(b[:n], '\n'); end >= 0 {
		return b[:end+1]
	}
	return b[:bytes.IndexByte(b, '\n')+1]
}

var newline = []byte{'\n'}

func (w *Writer) writeTo(to *target, b []byte) {
	lines := bytes.Count(b, newline)
	if w.torn == to { // the destination ends in the middle of a line
		if _, err := to.Write(newline); err != nil {
			w.lose(lines, err, w.options.Failed)
			return
		}
		w.torn = nil
	}
	n, err := to.Write(b)
	if err == nil {
		w.options.Written.Add(float64(lines))
		w.regain()
		return
	}
	n = max(n, 0)
	whole := bytes.Count(b[:n], newline)
	if n > 0 && b[n-1] != '\n' {
		w.torn = to
	}
	w.options.Written.Add(float64(whole))
	w.lose(lines-whole, err, w.options.Failed)
}

// Losing returns how many lines were dropped since lines began to be lost, and when that was. 0:
// lines are written, as far as the Writer knows.
func (w *Writer) Losing() (lines int64, since time.Time) {
	if !w.losing.Load() {
		return 0, time.Time{}
	}
	return w.lost.Load(), time.Unix(0, w.began.Load())
}

// regain ends a loss.
func (w *Writer) regain() {
	if !w.losing.Load() || time.Since(time.Unix(0, w.last.Load())) < lossEnds {
		return
	}
	lost := w.lost.Swap(0)
	w.losing.Store(false)
	w.options.Regained(lost)
}

// Reopen opens the file again, after log rotation has moved it away. On an error the old file
// stays in use. Lines go to the old file until the new one is open, which may take long.
func (w *Writer) Reopen() error {
	if w.path == "" {
		return nil
	}
	w.opening.Lock()
	defer w.opening.Unlock()
	f, err := w.options.OpenFile(w.path)
	if err != nil {
		return err
	}
	if w.closed.Load() {
		return f.Close()
	}
	w.drain() // earlier lines belong to the old file
	w.to.Swap(&target{WriteCloser: f}).Close()
	return nil
}

// drain waits until all lines are written, or until patience ends.
func (w *Writer) drain() {
	t := time.NewTimer(patience)
	defer t.Stop()
	done := make(chan struct{})
	select {
	case w.asked <- done:
	case <-w.ended:
		return
	case <-t.C:
		return
	}
	select {
	case <-done:
	case <-t.C:
	}
}

// Close writes the remaining lines and closes the destination. It returns the number of lines
// that the destination did not take within two seconds; they are lost.
func (w *Writer) Close() (lost int) {
	if w.closed.Swap(true) {
		return 0
	}
	close(w.closing)
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-w.ended:
	case <-t.C:
		lost = takeAll(w, true, w.store.lines)
	}
	w.opening.Lock()
	defer w.opening.Unlock()
	w.to.Load().Close()
	return lost
}
