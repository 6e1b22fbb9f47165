package main

import (
	"fmt"
	"os"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/weirproxy/weir/config"
)

// newLog makes weir's own log, on standard error. level may be changed while it is in use.
func newLog(c config.Log, level zap.AtomicLevel) *zap.Logger {
	e := zap.NewProductionEncoderConfig()
	e.TimeKey, e.EncodeTime = "time", zapcore.RFC3339NanoTimeEncoder
	encoder := zapcore.NewJSONEncoder(e)
	if c.Format == "console" {
		e.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(e)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), level))
}

func setLevel(level zap.AtomicLevel, c config.Log) {
	if l, err := zapcore.ParseLevel(c.Level); err == nil {
		level.SetLevel(l)
	}
}

// logFile is a log's file, which log rotation may move away: Reopen then
// begins a new one.
type logFile struct {
	mu   sync.Mutex
	path string // empty: the file is a standard stream
	file *os.File
}

func openLogFile(path string) (*logFile, error) {
	switch path {
	case "stdout":
		return &logFile{file: os.Stdout}, nil
	case "stderr":
		return &logFile{file: os.Stderr}, nil
	}
	l := &logFile{path: path}
	return l, l.Reopen()
}

// Reopen opens the path anew. On an error the old file stays in use.
func (l *logFile) Reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("cannot open the access log (access_log.path): %w", err)
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file = f
	return nil
}

func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Write(p)
}

// Sync belongs to zapcore.WriteSyncer; lines are written as they come.
func (l *logFile) Sync() error { return nil }

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != "" {
		l.file.Close()
	}
}

// accessLog is the access log in use: nil where there is none.
type accessLog struct {
	*zap.Logger
	file *logFile
	path string
}

func openAccessLog(c *config.AccessLog) (*accessLog, error) {
	if c == nil {
		return nil, nil
	}
	f, err := openLogFile(c.Path)
	if err != nil {
		return nil, err
	}
	encoder := zapcore.NewJSONEncoder(zapcore.EncoderConfig{
		TimeKey: "time", EncodeTime: zapcore.RFC3339NanoTimeEncoder, LineEnding: zapcore.DefaultLineEnding})
	return &accessLog{Logger: zap.New(zapcore.NewCore(encoder, f, zapcore.InfoLevel)), file: f, path: c.Path}, nil
}
