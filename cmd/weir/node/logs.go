package node

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

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
		e.EncodeLevel, e.EncodeTime = zapcore.CapitalLevelEncoder, zapcore.TimeEncoderOfLayout(time.DateTime)
		encoder = zapcore.NewConsoleEncoder(e)
	}
	return newLogTo(os.Stderr, encoder, level)
}

// newLogTo makes a log that waits for no destination.
func newLogTo(to io.Writer, encoder zapcore.Encoder, level zap.AtomicLevel) *zap.Logger {
	w := &patientLog{to: to}
	log := zap.New(shortCore{zapcore.NewCore(encoder, w, level)})
	w.lost = func(lines int) {
		log.Warn("the log takes lines again; meanwhile lines were dropped, because nothing read standard error", zap.Int("dropped", lines))
	}
	return log
}

// mostLogged limits each text of a line of weir's own log, in bytes. Errors may contain text of peers.
const mostLogged = 8 << 10

// shortCore is a core that cuts long texts.
type shortCore struct{ zapcore.Core }

// With adds fields to all lines.
func (c shortCore) With(fields []zapcore.Field) zapcore.Core {
	return shortCore{c.Core.With(shortened(fields))}
}

// Check adds the core to a line that its level permits.
func (c shortCore) Check(e zapcore.Entry, line *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return line.AddCore(e, c)
	}
	return line
}

// Write writes a line.
func (c shortCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	e.Message = short(e.Message)
	return c.Core.Write(e, shortened(fields))
}

// shortened returns the fields with long texts cut.
func shortened(fields []zapcore.Field) []zapcore.Field {
	all := slices.Clone(fields)
	for i, f := range all {
		text := f.String
		if err, is := f.Interface.(error); is && f.Type == zapcore.ErrorType {
			text = err.Error()
		}
		if len(text) > mostLogged {
			all[i] = zap.String(f.Key, short(text))
		}
	}
	return all
}

// short returns a text, or the beginning of a long one and its length.
func short(text string) string {
	if len(text) <= mostLogged {
		return text
	}
	return strings.ToValidUTF8(text[:mostLogged], "") + "...[cut:" + strconv.Itoa(len(text)) + "]"
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

func setLevel(level zap.AtomicLevel, c config.Log) {
	if l, err := zapcore.ParseLevel(c.Level); err == nil {
		level.SetLevel(l)
	}
}
