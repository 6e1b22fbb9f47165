package node

import (
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"github.com/weirproxy/weir/config"
)

// newLog makes weir's own log, on standard error. level may be changed while it is in use.
func newLog(c config.Log, level zap.AtomicLevel, terminal bool) *zap.Logger {
	e := zap.NewProductionEncoderConfig()
	e.TimeKey, e.EncodeTime = "time", zapcore.RFC3339NanoTimeEncoder
	encoder := zapcore.NewJSONEncoder(e)
	if c.Format == "console" || c.Format == "auto" && terminal {
		e.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(e)
	}
	return newLogTo(os.Stderr, encoder, level)
}

// newLogTo makes a log that waits for no destination.
func newLogTo(to io.Writer, encoder zapcore.Encoder, level zap.AtomicLevel) *zap.Logger {
	w := &patientLog{to: to}
	log := zap.New(zapcore.NewCore(encoder, w, level))
	w.lost = func(lines int) {
		log.Warn("the log takes lines again; meanwhile lines were dropped, because nothing read standard error", zap.Int("dropped", lines))
	}
	return log
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

func setLevel(level zap.AtomicLevel, c config.Log) {
	if l, err := zapcore.ParseLevel(c.Level); err == nil {
		level.SetLevel(l)
	}
}
