package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// upgradeWithBody is the head of a request as `docker exec` sends it: the body comes before the other protocol.
func upgradeWithBody(length int, more string) string {
	return fmt.Sprintf("POST /exec HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: %d\r\n%s\r\n", length, more)
}

const switched = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"

func TestUpgradeWithBody(t *testing.T) {
	large := strings.Repeat("0123456789", 20_000)
	for _, text := range []string{plain, secure, strings.Replace(plain, "endpoints:", "protocol: https, tls: {insecure_skip_verify: true}, endpoints:", 1)} {
		e := newEndpoint(t)
		if strings.Contains(text, "https") {
			e = newTLSEndpoint(t)
		}
		r := newRig(t, text, nil, "@app", e.address)
		f := func(more string, pieces ...string) {
			t.Helper()
			c := r.dial("web")
			if text == secure {
				c = r.dialTLS("web", "a", nil)
			}
			body := strings.Join(pieces, "")
			c.write(upgradeWithBody(len(body), more))
			s := e.accept()
			if len(body) > 0 {
				go func() {
					for _, p := range pieces {
						c.write("%s", p)
					}
				}()
			}
			if head := s.head(); !strings.Contains(head, "\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n") || strings.Count(head, fmt.Sprintf("\r\nContent-Length: %d\r\n", len(body))) != 1 {
				t.Errorf("the endpoint got %q", head)
			}
			s.wantRead(body)
			s.write(switched + "hi")
			if head := c.head(); !strings.HasPrefix(head, "HTTP/1.1 101 UPGRADED\r\n") {
				t.Errorf("the client got %q", head)
			}
			c.wantRead("hi")
			c.write("ping")
			s.wantRead("ping") // and no part of the body once more
			c.Close()
			s.Close()
			r.record().want(t, "kind", "upgrade", "status", 101, "retries", 0)
		}
		f("")
		f("", "body")
		f("", "bo", "dy")
		f("", large)
		f("Accept: *\r\n", large[:100_000], large[100_000:])
		r.wantNoLog()
	}
}

// An upgrade whose body came together with its head, and bytes of the new protocol behind it.
func TestUpgradeWithBodyAtOnce(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write(upgradeWithBody(4, "") + "bodyearly")
	s := e.accept()
	s.head()
	s.wantRead("body")
	s.write(switched)
	c.head()
	s.wantRead("early")

	// The endpoint does not switch: the request is like any other, and so is the next one.
	c = r.dial("web")
	c.write(upgradeWithBody(4, "") + "body" + get)
	s = e.accept()
	s.head()
	s.wantRead("body")
	s.write(ok("no"))
	c.wantResponse(200, "no")
	serveOnce(s, ok("next"))
	c.wantResponse(200, "next")

	c = r.dial("web")
	c.write("POST / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n")
	c.wantResponse(400, "*")
}

// An endpoint that switches protocols before it has the body would read the rest as the other protocol.
func TestEndpointSwitchesBeforeTheBody(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write(upgradeWithBody(8, "") + "body")
	s := e.accept()
	s.head()
	s.wantRead("body")
	s.write(switched)
	if resp := c.wantResponse(502, "*"); !resp.Close {
		t.Error("the client's connection goes on")
	}
	c.wantEnd(false)
	s.wantEnd(false)
	rec := r.record()
	rec.want(t, "kind", "http", "status", 502, "reason", "bad_response_bad_upgrade")
	rec.wantError(t, "before it had the whole body")
}

// The guards of a route see the body of an upgrade, and weir does not send it twice.
func TestGuardsOfUpgradeWithBody(t *testing.T) {
	a := newAskedRig(t, false)
	c := a.dial("web")
	c.write(upgradeWithBody(4, "") + "bo")
	c.write("dy")
	c.wantResponse(200, "")
	if got := next(t, a.auth, "question"); got != `POST /check/exec 4 "body"` {
		t.Errorf("the server that decides got %s", got)
	}
	if got := next(t, a.app, "request"); got != `POST /exec 4 "body" X-User:ada` {
		t.Errorf("the endpoint got %s", got)
	}
	c = a.dial("web")
	c.write(upgradeWithBody(20001, ""))
	c.wantResponse(413, "*")

	r, e := newPlain(t, func(cfg *config.Config) { cfg.Routes[0].MaxBody = 3 })
	c = r.dial("web")
	c.write(upgradeWithBody(4, "") + "body")
	c.wantResponse(413, "*")
	r.record().want(t, "status", 413, "reason", "body_too_large")
	e.untouched()

	// A guard has the body, and the endpoint switches: the memory is given back.
	e = newEndpoint(t)
	auth := newHandler(t, func(http.ResponseWriter, *http.Request) {})
	r = newRig(t, strings.Replace(plain, "backends: {", "backends: {auth: {endpoints: ['"+auth+"']}, ", 1), func(cfg *config.Config) {
		cfg.Auth = append(cfg.Auth, config.Auth{Name: "objects", External: &config.ExternalAuth{Backend: "auth", Timeout: patience, MaxBody: 20000}})
		cfg.Routes[0].Auth = "objects"
	}, "@app", e.address)
	c = r.dial("web")
	c.write(upgradeWithBody(4, "") + "bo")
	c.write("dy")
	s := e.accept()
	s.head()
	s.wantRead("body")
	s.write(switched)
	c.head()
	c.write("ping")
	s.wantRead("ping")
}

// The body of an upgrade is not sent to a second endpoint.
func TestUpgradeWithBodyIsNotRepeated(t *testing.T) {
	one, two := newEndpoint(t), newEndpoint(t)
	r := newRig(t, strings.Replace(plain, "['@app']", "['@app', '@two']", 1), nil, "@app", one.address, "@two", two.address)
	c := r.dial("web")
	c.write(upgradeWithBody(4, "") + "body")
	var s *peer
	select {
	case s = <-one.conns:
	case s = <-two.conns:
	}
	s.head()
	s.wantRead("body")
	s.Close()
	c.wantResponse(502, "*")
	r.record().want(t, "status", 502, "retries", 0)
	one.untouched()
	two.untouched()
}
