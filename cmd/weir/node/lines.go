package node

import (
	"reflect"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// accessLog is the access log in use; nil: there is none.
type accessLog struct {
	*accesslog.Writer
	format *accesslog.Format
	of     config.AccessLog
}

// wantedAccessLog returns the access log that a configuration asks for; nil: none.
func (s *server) wantedAccessLog(cfg *config.Config) *config.AccessLog {
	switch c := cfg.AccessLog; {
	case c == nil && s.showRequests:
		return config.NewAccessLog()
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
	if old != nil && old.of.Path == want.Path && old.of.Buffer == want.Buffer {
		if reflect.DeepEqual(old.of, *want) {
			return old, nil
		}
		return &accessLog{Writer: old.Writer, format: accesslog.NewFormat(*want), of: *want}, nil
	}
	w, err := accesslog.Open(accesslog.Options{Path: want.Path, Buffer: want.Buffer, OpenFile: s.openLogFile,
		Lost: func(err error) { s.linesLost(want.Path, err) }, Regained: func(lost int64) { s.linesRegained(want.Path, lost) },
		Written: s.metrics.lines, Full: s.metrics.droppedLines.WithLabelValues("full"), Failed: s.metrics.droppedLines.WithLabelValues("failed")})
	if err != nil {
		return nil, err
	}
	return &accessLog{Writer: w, format: accesslog.NewFormat(*want), of: *want}, nil
}

func (s *server) linesLost(path string, err error) {
	s.log.Error("the access log cannot be written, and its lines are dropped until it can (access_log.path)",
		zap.String("path", path), zap.Error(err))
}

func (s *server) linesRegained(path string, lost int64) {
	s.log.Info("the access log is written again", zap.String("path", path), zap.Int64("dropped", lost))
}

// closeLines closes an access log unless the other one has the same Writer. A slow destination
// delays only the end of weir.
func (s *server) closeLines(a, other *accessLog) {
	if a == nil || other != nil && other.Writer == a.Writer {
		return
	}
	s.closingLines.Go(func() { s.endLines(a) })
}

// endLines writes the remaining lines, and closes the access log.
func (s *server) endLines(a *accessLog) {
	if lost := a.Close(); lost > 0 {
		s.log.Error("the access log was closed, and its last lines are lost: its destination did not take them in time (access_log.path)",
			zap.String("path", a.of.Path), zap.Int("dropped", lost))
	}
}
