package node

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy"
)

// The access log: its file, and the handling of lines that cannot be written.

// logFile is the file of a log. Log rotation may move the file away; Reopen then creates a
// new one. A line that cannot be written is dropped and counted.
type logFile struct {
	name string // as the configuration has it
	path string // empty: the file is a standard stream

	mu     sync.Mutex
	file   *os.File
	closed bool

	log     *zap.Logger
	dropped prometheus.Counter
	failing bool      // lines are being lost, and the log has reported it
	lost    int       // lines since the loss began
	last    time.Time // when the last line was lost
	torn    bool      // the file ends in the middle of a line
}

func openLogFile(name string, log *zap.Logger, dropped prometheus.Counter) (*logFile, error) {
	l := &logFile{name: name, log: log, dropped: dropped}
	switch name {
	case "stdout":
		l.file = os.Stdout
	case "stderr":
		l.file = os.Stderr
	default:
		l.path = name
	}
	return l, l.Reopen()
}

// Reopen opens the path again. On an error the old file stays in use. Lines go to the old
// file until the new one is open, which may take long.
func (l *logFile) Reopen() error {
	if l.path == "" {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("cannot open the access log (access_log.path): %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return f.Close()
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.torn = f, false
	return nil
}

// Write writes a line. It never returns an error: zap would print each error.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.torn {
		if _, err := l.file.WriteString("\n"); err != nil {
			l.drop(err)
			return len(p), nil
		}
		l.torn = false
	}
	n, err := l.file.Write(p)
	if err != nil {
		l.torn = n > 0
		l.drop(err)
	} else if l.failing {
		l.wrote()
	}
	return len(p), nil
}

// drop counts a lost line, and logs the first one.
func (l *logFile) drop(err error) {
	l.dropped.Inc()
	if !l.failing {
		l.failing, l.lost = true, 0
		l.log.Error("the access log cannot be written, and its lines are dropped until it can (access_log.path)",
			zap.String("path", l.name), zap.Error(err))
	}
	l.lost++
	l.last = time.Now()
}

// lossEnds is how long no line must be lost before weir considers the loss ended. On a
// disk that is almost full, some lines fit and others do not.
const lossEnds = 10 * time.Second

func (l *logFile) wrote() {
	if time.Since(l.last) < lossEnds {
		return
	}
	l.failing = false
	l.log.Info("the access log is written again", zap.String("path", l.name), zap.Int("dropped", l.lost))
}

// Sync belongs to zapcore.WriteSyncer. It does nothing: lines are not buffered.
func (l *logFile) Sync() error { return nil }

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.path != "" {
		l.file.Close()
	}
}

// accessLog is the access log in use; nil: there is none.
type accessLog struct {
	*zap.Logger
	file   *logFile
	redact *proxy.Redaction
	of     config.AccessLog
}

// samples reports whether the record has a line. If only a share of such records has one, the
// record says so.
func (a *accessLog) samples(r *proxy.Record) bool {
	if a.of.Sample >= 1 || !r.Good() {
		return true
	}
	r.Sample = a.of.Sample
	return rand.Float64() < r.Sample
}

// wantedAccessLog returns the access log that a configuration asks for; nil: none.
func (s *server) wantedAccessLog(cfg *config.Config) *config.AccessLog {
	switch c := cfg.AccessLog; {
	case c == nil && s.showRequests:
		return &config.AccessLog{Path: "stdout", Sample: 1}
	case c == nil || c.Path == config.NoAccessLog:
		return nil
	default:
		return c
	}
}

// openAccessLog opens the access log that a file asks for; nil: none. If the path is the
// same as in effect, the open file is used.
func (s *server) openAccessLog(file *config.Config) (*accessLog, error) {
	want, old := s.wantedAccessLog(file), s.lines.Load()
	if want == nil {
		return nil, nil
	}
	if old != nil && old.of.Path == want.Path {
		if old.of.Sample == want.Sample && slices.Equal(old.of.Redact, want.Redact) {
			return old, nil
		}
		return &accessLog{Logger: old.Logger, file: old.file, redact: proxy.NewRedaction(want.Redact), of: *want}, nil
	}
	f, err := openLogFile(want.Path, s.log, s.metrics.droppedLines)
	if err != nil {
		return nil, err
	}
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		TimeKey: "time", EncodeTime: zapcore.RFC3339NanoTimeEncoder, LineEnding: zapcore.DefaultLineEnding})
	return &accessLog{Logger: zap.New(zapcore.NewCore(encoder, f, zapcore.InfoLevel)), file: f,
		redact: proxy.NewRedaction(want.Redact), of: *want}, nil
}

// closeUnless closes the file unless the other log uses the same one.
func (a *accessLog) closeUnless(other *accessLog) {
	if a != nil && (other == nil || other.file != a.file) {
		a.file.close()
	}
}
