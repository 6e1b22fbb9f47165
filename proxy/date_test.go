package proxy

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// dated returns the Date of the last of several HTTP/1.1 responses.
func dated(responses string) string {
	last := strings.LastIndex(responses, "HTTP/1.")
	at := last + strings.Index(responses[last:], "\r\n") + 2
	return responses[:at] + "Date: x\r\n" + responses[at:]
}

func TestDateOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := func(want string) {
			t.Helper()
			if got := string(dateOf(time.Now())); got != want {
				t.Errorf("the date is %q, not %q", got, want)
			}
		}
		f("Sat, 01 Jan 2000 00:00:00 GMT")
		first := dateOf(time.Now())
		time.Sleep(time.Second - time.Nanosecond)
		if again := dateOf(time.Now()); &again[0] != &first[0] {
			t.Error("the text is made twice within a second")
		}
		time.Sleep(time.Nanosecond)
		f("Sat, 01 Jan 2000 00:00:01 GMT")
		time.Sleep(31 * 24 * time.Hour)
		f("Tue, 01 Feb 2000 00:00:01 GMT")
		if string(first) != "Sat, 01 Jan 2000 00:00:00 GMT" {
			t.Errorf("the first text is %q now, while a response may still be written with it", first)
		}
		if got := string(dateOf(time.Now().In(time.FixedZone("", 3600)))); got != "Tue, 01 Feb 2000 00:00:01 GMT" {
			t.Errorf("the date is %q", got)
		}
		var res message.Response
		if n := testing.AllocsPerRun(100, func() {
			res.Reset()
			res.Status = 200
			stampDate(&res)
		}); n != 0 {
			t.Errorf("a Date allocates %v times", n)
		}
	})
}

// Every final response has one Date, in every version of HTTP, whether weir or an endpoint
// made it. weir keeps an endpoint's Date.
func TestDate(t *testing.T) {
	e := newEndpoint(t)
	r := newRig(t, `
listeners: {web: {address: '@0', protocol: http, http2: {prior_knowledge: true}}}
routes:
  - {listeners: [web], hosts: [app], backend: app}
  - {listeners: [web], hosts: [old], redirect: https}
  - {listeners: [web], hosts: [down], backend: down}
backends: {app: {endpoints: ['@app']}, down: {endpoints: ['@down']}}
`, nil, "@app", e.address, "@down", refusedAddress(t))
	begun := time.Now().Truncate(time.Second)
	check := func(what string, all []string) {
		t.Helper()
		if len(all) != 1 {
			t.Errorf("%s: %d Dates: %q", what, len(all), all)
			return
		}
		if at, err := http.ParseTime(all[0]); err != nil || at.Before(begun) || at.After(time.Now()) {
			t.Errorf("%s: Date is %q", what, all[0])
		}
	}
	f := func(status int, request string) {
		t.Helper()
		c := r.dial("web")
		c.write(request)
		resp := c.wantResponse(status, "*")
		check(request, resp.Header["Date"])
		r.record()
	}
	f(404, "GET / HTTP/1.1\r\nHost: b\r\n\r\n")
	f(404, "GET / HTTP/1.0\r\n\r\n")
	f(308, "GET / HTTP/1.1\r\nHost: old\r\n\r\n")
	f(502, "GET / HTTP/1.1\r\nHost: down\r\n\r\n")
	f(200, "POST / HTTP/1.1\r\nHost: b\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n")
	f(400, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
	f(501, "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")

	c := r.dial("web")
	c.write("GET / HTTP/1.1\r\nHost: app\r\n\r\n")
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
	c.wantRead("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
	s.write(ok("x"))
	check("a response without Date", c.wantResponse(200, "x").Header["Date"])
	c.write("GET / HTTP/1.1\r\nHost: app\r\n\r\n")
	s.head()
	s.write("HTTP/1.1 200 OK\r\nConnection: date\r\ndate: yesterday\r\nContent-Length: 0\r\n\r\n")
	if got := c.wantResponse(200, "").Header["Date"]; len(got) != 1 || got[0] != "yesterday" {
		t.Errorf("the endpoint's Date became %q", got)
	}
	c.write("GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	s.head()
	s.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	if head := c.head(); strings.Contains(strings.ToLower(head), "date:") {
		t.Errorf("a 101 with a Date: %q", head)
	}

	c2 := r.dial2("web")
	for _, authority := range []string{"b", "old", "down"} {
		a := c2.answer(c2.request(true, "/", ":authority: "+authority))
		var all []string
		for line := range strings.Lines(a.heads[0]) {
			if value, is := strings.CutPrefix(line, "date: "); is {
				all = append(all, strings.TrimSpace(value))
			}
		}
		check("HTTP/2 of "+authority, all)
	}
}

// Adding a Date to a response does not allocate.
func TestStampDate(t *testing.T) {
	f := func(status int, name, value string, want bool) {
		t.Helper()
		var res message.Response
		res.Status = status
		if name != "" {
			res.AddField(name, value)
		}
		stampDate(&res)
		if got := bytes.HasSuffix(res.Get(message.Date), []byte(" GMT")); got != want {
			t.Errorf("%d with %s: %q", status, name, res.Get(message.Date))
		}
	}
	f(200, "", "", true)
	f(503, "Dated", "x", true)
	f(200, "DATE", "x", false)
	f(200, "date", "", false)
	f(103, "", "", false)
	f(101, "", "", false)
}
