package node

import (
	"io"
	"slices"
	"sync"
	"time"
)

// The limits of a patientLog.
const (
	// logPatience is how long Write waits for a destination that blocks.
	logPatience = 100 * time.Millisecond
	// logBacklog limits the bytes of lines that wait for the destination.
	logBacklog = 1 << 20
)

// patientLog writes the lines of weir's own log. The destination may block, for example a pipe without a
// reader or a stopped terminal. Then lines wait in memory or are dropped, and requests and reloads continue.
// While the destination works, Write returns after the line was written. So no line is missing when weir ends.
type patientLog struct {
	to io.Writer
	// lost is called with the number of dropped lines after the destination has written all waiting lines.
	lost func(lines int)

	mu      sync.Mutex
	waiting []*logLine
	size    int // bytes of waiting
	dropped int
	running bool // a goroutine writes
	stuck   bool // a line has waited for logPatience
}

type logLine struct {
	text []byte
	done chan struct{} // closed when it is written
}

// Write implements io.Writer. It returns no error, because weir has no other place to report it.
func (w *patientLog) Write(p []byte) (int, error) {
	line, stuck := w.add(p)
	if line == nil || stuck {
		return len(p), nil
	}
	t := time.NewTimer(logPatience)
	defer t.Stop()
	select {
	case <-line.done:
	case <-t.C:
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stuck = w.running // else it was written just now
	}
	return len(p), nil
}

// Sync implements zapcore.WriteSyncer.
func (w *patientLog) Sync() error { return nil }

// add puts a line into the queue. It returns nil if the line was dropped.
func (w *patientLog) add(p []byte) (line *logLine, stuck bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size+len(p) > logBacklog && w.running {
		w.dropped++
		return nil, false
	}
	line = &logLine{slices.Clone(p), make(chan struct{})}
	w.waiting, w.size = append(w.waiting, line), w.size+len(p)
	if !w.running {
		w.running = true
		go w.run()
	}
	return line, w.stuck
}

// run writes the lines until none waits.
func (w *patientLog) run() {
	for line := w.next(); line != nil; line = w.next() {
		w.to.Write(line.text)
		close(line.done)
	}
}

// next takes a line; nil: none waits.
func (w *patientLog) next() *logLine {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) == 0 {
		if w.dropped > 0 {
			go w.lost(w.dropped)
		}
		w.waiting, w.dropped, w.running, w.stuck = nil, 0, false, false
		return nil
	}
	line := w.waiting[0]
	w.waiting = w.waiting[1:]
	w.size -= len(line.text)
	return line
}
