package backend

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/health"
	"github.com/weirproxy/weir/proxy/http1"
)

// Checks over HTTP/1.1 accept the responses that exchanges accept. Only the status counts.
func TestChecksOverHTTP1(t *testing.T) {
	f := func(lenient http1.Lenient, answer string, status int, wantErr string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			asked := make(chan *http.Request, 1)
			go func() {
				defer there.Close()
				r, err := http.ReadRequest(bufio.NewReader(there))
				if err != nil {
					t.Error(err)
					return
				}
				asked <- r
				head, _, hang := strings.Cut(answer, "HANG")
				if head != "" { // an empty write to a pipe causes an empty read
					io.WriteString(there, head)
				}
				if hang {
					io.Copy(io.Discard, there) // until the check gives up
				}
			}()
			a := newCheckHTTP1(checkSocket{here}, "app", &dialSettings{lenient: lenient, infos: 16})
			defer a.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			defer context.AfterFunc(ctx, a.Cut)()
			got, err := a.Ask(ctx, &health.Question{Method: "GET", Host: "app.internal", Path: "/healthz?a=%2f;",
				Fields: [][2]string{{"user-agent", "weir-health-check"}, {"accept", "*/*"}}})
			switch {
			case wantErr != "":
				if err == nil || !strings.Contains(err.Error(), wantErr) {
					t.Errorf("%.40q: %v, want %q", answer, err, wantErr)
				}
			case err != nil || got.Status != status:
				t.Errorf("%.40q: %+v, %v", answer, got, err)
			}
			if r := <-asked; r.Method != "GET" || r.RequestURI != "/healthz?a=%2f;" || r.Host != "app.internal" || !r.Close ||
				r.UserAgent() != "weir-health-check" || r.Header.Get("Accept") != "*/*" {
				t.Errorf("asked %+v", r)
			}
		})
	}
	f(0, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "")
	f(0, "HTTP/1.0 204 No Content\r\n\r\n", 204, "")
	f(0, "\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "")
	f(0, "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", 200, "")
	f(0, "HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example.org/\r\n\r\n", 302, "") // checks do not follow redirects
	f(0, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", 200, "")
	f(0, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut", 200, "")
	f(0, "HTTP/1.1 200 OK\r\n\r\n"+strings.Repeat("x", 200<<10), 200, "")
	f(0, "HTTP/1.1 200 OK\r\n\r\nslowHANG", 200, "")
	f(0, "HTTP/1.1 503 Service Unavailable\r\n\r\n", 503, "")
	f(0, "HTTP/1.1 101 Switching Protocols\r\n\r\n", 0, "switched to a protocol")
	f(0, "SSH-2.0-OpenSSH\r\n\r\n", 0, "does not begin with an HTTP/1.1 status line")
	f(0, "", 0, "EOF")
	f(0, "HANG", 0, "deadline exceeded")
	f(0, "HTTP/1.1 200 OK\r\nX: "+strings.Repeat("x", 200<<10), 0, "head")
	f(0, strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 10_000), 0, "1xx")
	f(0, "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 0, "a line ends without a carriage return (backends.app.lenient: [bare_lf] accepts it)")
	f(http1.BareLF, "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, "")
}
