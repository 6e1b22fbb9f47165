package annotation

import (
	"maps"
	"testing"
)

func TestTraces(t *testing.T) {
	f := checkSetting(t, func(s Settings) bool { return s.Untraced })
	f("enable-opentelemetry: true", false, Near)
	f("enable-opentelemetry: false", true, Exact)
	f("enable-opentelemetry: 0", true, Exact)
	f("enable-opentelemetry: off", false, No)
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"enable-opentelemetry": {{"`true`", "true", false}, {"`false`", "false", false}, {"other values", "off", false}},
	})
}
