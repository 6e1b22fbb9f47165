package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// stuckWriter takes nothing while it is stuck.
type stuckWriter struct {
	mu    sync.Mutex
	may   chan struct{}
	lines []string
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.may
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, string(p))
	return len(p), nil
}

// A log without a reader delays weir by logPatience at most once. When a reader comes, weir writes the waiting
// lines and reports the number of dropped lines.
func TestStuckLogDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := new(stuckWriter)
		log := newLogTo(to, zapcore.NewJSONEncoder(zapcore.EncoderConfig{MessageKey: "msg"}), zap.NewAtomicLevel())
		const lines = 3000
		for range 2 { // the second time is like the first
			to.may, to.lines = make(chan struct{}), nil
			begun := time.Now()
			for i := range lines {
				log.Info(fmt.Sprintf("%d %s", i, strings.Repeat("x", 1000)))
			}
			if took := time.Since(begun); took != logPatience {
				t.Errorf("%d lines took %v", lines, took)
			}
			close(to.may)
			time.Sleep(time.Second)
			synctest.Wait()
			n := len(to.lines) - 1
			if n < 1000 || n > 1100 {
				t.Fatalf("%d lines were written", n)
			}
			for i, line := range to.lines[:n] {
				if !strings.HasPrefix(line, fmt.Sprintf(`{"msg":"%d x`, i)) || !strings.HasSuffix(line, "\n") {
					t.Fatalf("line %d is %.40q", i, line)
				}
			}
			if last := to.lines[n]; !strings.Contains(last, fmt.Sprintf(`"dropped":%d`, lines-n)) {
				t.Errorf("after %d lines the last one is %q", n, last)
			}
		}
		// From now on each line is written before Info returns.
		log.Info("again")
		if to.mu.Lock(); !strings.Contains(to.lines[len(to.lines)-1], "again") {
			t.Error("the line is not written at once")
		}
		to.mu.Unlock()
	})
}

// A line that is larger than the backlog is written, too.
func TestLongLogLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &stuckWriter{may: make(chan struct{})}
		close(to.may)
		w := &patientLog{to: to}
		w.Write(make([]byte, 2*logBacklog))
		if len(to.lines) != 1 || len(to.lines[0]) != 2*logBacklog {
			t.Errorf("%d lines", len(to.lines))
		}
	})
}

// A line of the log does not have the whole of a long text.
func TestLongTextsAreCut(t *testing.T) {
	var to bytes.Buffer
	log := newLogTo(&to, zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zap.NewAtomicLevel())
	long := strings.Repeat("\u00e9", 1<<20)
	log.With(zap.String("with", long)).Warn(long, zap.Error(errors.New(long)), zap.String("short", "text"))
	var line map[string]any
	if err := json.Unmarshal(to.Bytes(), &line); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"msg", "with", "error"} {
		if text, _ := line[key].(string); len(text) > mostLogged+100 || !strings.HasSuffix(text, "[cut:2097152]") {
			t.Errorf("%s has %d bytes", key, len(text))
		}
	}
	if line["short"] != "text" || line["level"] != "warn" {
		t.Errorf("the line is %.200v", line)
	}
}
