package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/memory"
)

// hoard sets a memory limit and charges memory until the test ends, so that every connection may have
// only room bytes.
func (r *rig) hoard(room int) {
	r.Helper()
	const limit = 64 << 20
	r.proxy.Memory.SetLimit(limit)
	var other memory.Account
	other.Open(r.proxy.Memory, netip.MustParsePrefix("192.0.2.1/32"), nil)
	other.Force(limit + limit/2 - room) // fair shares give nobody more memory than that
	r.stop = append(r.stop, other.Close)
}

// A request without memory gets 503 with a reason. Weir closes its connection and releases its
// charge.
func TestRequestsRefusedForMemory(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	r.hoard(memory.Exchange / 2)
	c := r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp, _ := c.response("GET"); resp.StatusCode != 503 || !resp.Close {
		t.Errorf("the answer is %d, close %t", resp.StatusCode, resp.Close)
	}
	r.record().want(t, "status", 503, "reason", "memory")

	// The same applies to a request of which only a part has arrived.
	c = r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHo")
	if resp, _ := c.response("GET"); resp.StatusCode != 503 {
		t.Errorf("the answer is %d", resp.StatusCode)
	}
	r.record().want(t, "status", 503, "reason", "memory")
}

func TestLargeHeadsRefusedForMemory(t *testing.T) {
	large := "X-Large: " + strings.Repeat("v", 40_000)
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/large" {
			w.Header().Set("X-Large", large)
		}
		io.WriteString(w, "hello")
	})
	r := newRig(t, plain, nil, "@app", app)
	r.hoard(memory.Exchange + 16<<10)
	c := r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHost: a\r\n" + large + "\r\n\r\n")
	if resp, _ := c.response("GET"); resp.StatusCode != 503 {
		t.Errorf("a request with a large head is answered %d", resp.StatusCode)
	}
	r.record().want(t, "status", 503, "reason", "memory")

	c = r.dial("web")
	for range 8 { // it is not the endpoint's fault, so the endpoint stays in use
		c.write("GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
		if resp, body := c.response("GET"); resp.StatusCode != 503 || !strings.Contains(body, "not enough memory") {
			t.Errorf("a response with a large head became %d %q", resp.StatusCode, body)
		}
		r.record().want(t, "status", 503, "reason", "memory")
	}
	c.write("GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp, body := c.response("GET"); resp.StatusCode != 200 || body != "hello" {
		t.Errorf("a small one after that is %d %q", resp.StatusCode, body)
	}
	r.record()
}

func TestUploadsRefusedForMemory(t *testing.T) {
	r := newRig(t, plain, nil, "@app", newHandler(t, echo))
	r.hoard(memory.Exchange + 8<<10)
	c := r.dial("web")
	c.write(post(100_000))
	if resp, _ := c.response("POST"); resp.StatusCode != 503 {
		t.Errorf("the answer is %d", resp.StatusCode)
	}
	r.record().want(t, "status", 503, "reason", "memory")
}

// The log says that a connection was closed because of the memory it held.
func TestLargestConnectionEnds(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write("GET /a HTTP/1.1\r\nHost: a\r\nX-Large: " + strings.Repeat("v", 60_000) + "\r\n\r\n")
	eventually(t, "the request is charged", func() error {
		if n := r.proxy.Memory.Used(); n < 100_000 {
			return fmt.Errorf("%d bytes are used", n)
		}
		return nil
	})
	e.accept().head() // from here on, the connection charges nothing more, which could end it too early
	r.proxy.Memory.SetLimit(60_000)
	other := r.dial("web")
	other.write("GET /b HTTP/1.1\r\nHost: a\r\n\r\n")
	if resp, _ := other.response("GET"); resp.StatusCode != 503 {
		t.Errorf("while all is in use, another request is answered %d", resp.StatusCode)
	}
	for _, rec := range []entry{r.record(), r.record()} {
		rec.want(t, "reason", "memory")
		rec.wantError(t, "limits.memory")
	}
	eventually(t, "the end is counted", func() error { // a moment after it has begun
		if n := r.proxy.Memory.Ended(); n != 1 {
			return fmt.Errorf("%d connections were ended", n)
		}
		return nil
	})
}
