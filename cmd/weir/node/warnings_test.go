package node

import (
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/weirproxy/weir/config"
)

// A configuration with thousands of warnings does not flood the log.
func TestLogWarnings(t *testing.T) {
	f := func(warnings, lines int, last string) {
		t.Helper()
		core, seen := observer.New(zapcore.WarnLevel)
		logWarnings(zap.New(core), make(config.Errors, warnings))
		all := seen.All()
		if len(all) != lines || lines > 0 && !strings.Contains(all[lines-1].Message, last) {
			t.Errorf("%d warnings: %d lines, %v", warnings, len(all), all)
		}
	}
	f(0, 0, "")
	f(50, 50, "")
	f(10_000, 51, "has 9950 more warnings")
}
