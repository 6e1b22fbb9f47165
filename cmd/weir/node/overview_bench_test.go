//go:build linux

package node

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"
)

// processorTime returns the CPU time of this process in nanoseconds.
func processorTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// BenchmarkOverview is one update of the status page with ten thousand routes, all of which have had traffic,
// and as many backends. See refreshAfter for how often a page asks.
func BenchmarkOverview(b *testing.B) {
	var text strings.Builder
	text.WriteString("listeners: {web: {address: '@web', protocol: http}}\nroutes:\n")
	for i := range many {
		fmt.Fprintf(&text, "  - {name: answer-%d, listeners: [web], hosts: [h%d.example], respond: {status: 204}}\n", i, i)
	}
	text.WriteString("backends:\n")
	for i := range many {
		fmt.Fprintf(&text, "  backend-%d: {endpoints: ['127.0.0.1:1', '127.0.0.2:1', '127.0.0.3:1']}\n", i)
	}
	r := makeRunning(b, "web")
	r.load(text.String())
	for i := range many {
		req, _ := http.NewRequest("GET", "http://"+r.address("web")+"/", nil)
		req.Host = fmt.Sprintf("h%d.example", i)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	r.showOverview(httptest.NewRecorder(), httptest.NewRequest("GET", "/status/overview", nil))
	b.ReportAllocs()
	before := processorTime(b)
	defer func() {
		b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
	}()
	for b.Loop() {
		r.overview.at = time.Time{} // otherwise the parts of the first update are shown
		w := httptest.NewRecorder()
		r.showOverview(w, httptest.NewRequest("GET", "/status/overview?rows=100", nil))
		if w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
