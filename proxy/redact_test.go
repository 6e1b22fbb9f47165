package proxy

import (
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
)

// The log line hides the values in the target and in Referer.
func TestRedactedLine(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	r.proxy.SetLog(func(rec *accesslog.Record) {
		r.records <- entryOf(rec, config.AccessLog{Format: config.LogJSON, Sample: 1, Redact: []string{"token"}})
	})
	c := r.dial("web")
	c.write("GET /x?token=a HTTP/1.1\r\nHost: a\r\nReferer: http://a/?b=c&token=d\r\n\r\n")
	c.response("GET")
	r.record().want(t, "target", "/x?token=***", "referer", "http://a/?b=c&token=***")
}
