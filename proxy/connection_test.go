package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/accesslog"
)

func TestRefusedHeads(t *testing.T) {
	r, e := newPlain(t, nil)
	f := func(request string, status int, reason string) {
		t.Helper()
		c := r.dial("web")
		c.write(request + get) // weir reads nothing after it
		resp := c.wantResponse(status, "*")
		if !resp.Close {
			t.Error("the connection goes on")
		}
		c.wantEnd(false)
		r.record().want(t, "status", status, "reason", reason, "route", nil)
	}
	f("GET / HTTP/1.1\r\n\r\n", 400, "no_host")
	f("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", 501, "method")
	f("GET / HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("y", 65<<10)+"\r\n\r\n", 431, "head_too_large")
	f("GET /a/../b HTTP/1.1\r\nHost: a\r\n\r\n", 400, "ambiguous_path")
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "two_lengths")
	f("GET / HTTP/3.0\r\n\r\n", 505, "version")
	e.untouched()

	c := r.dial("web")
	c.write("GET / HT")
	c.closeWrite()
	c.wantEnd(false)
	r.refusal().want(t, "kind", "refused", "listener", "web", "reason", "request_head")

	c = r.dial("web")
	c.write(get)
	serveOnce(e.accept(), ok(""))
	c.wantResponse(200, "")
	r.record()
	c.reset() // while idle: weir reports nothing
	r.shut()
	r.wantNoLog()
}

func TestDraining(t *testing.T) {
	r, e := newPlain(t, nil)
	c, d := r.dial("web"), r.dial("web")
	c.write(get)
	s := serveOnce(e.accept(), ok(""))
	if resp := c.wantResponse(200, ""); resp.Close {
		t.Error("closed too early")
	}
	r.record() // the endpoint's connection is free again
	d.write(get)
	s.head()
	r.proxy.SetDraining(true)
	s.write(ok("late")) // a running exchange is finished
	if resp := d.wantResponse(200, "late"); !resp.Close {
		t.Error("the connection goes on")
	}
	d.wantEnd(false)
	r.record()
	c.write(get) // an idle connection may have one more exchange
	serveOnce(s, ok(""))
	if resp := c.wantResponse(200, ""); !resp.Close {
		t.Error("the connection goes on")
	}
	c.wantEnd(false)
	r.record()
	r.proxy.SetDraining(false)
	c = r.dial("web")
	c.write(get)
	serveOnce(s, ok(""))
	if resp := c.wantResponse(200, ""); resp.Close {
		t.Error("closed after the drain was ended")
	}
}

// Cut ends a connection in every state.
func TestCut(t *testing.T) {
	f := func(request, response string, status int, reason string) {
		t.Helper()
		r, e := newPlain(t, nil)
		c := r.dial("web")
		c.write(request)
		s := e.accept()
		s.head()
		if response != "" {
			s.write(response)
			c.head()
		}
		r.only().Cut()
		if _, err := io.ReadAll(c.r); (err == nil) == (response != "") {
			t.Errorf("%q: the end is %v", request, err)
		}
		r.record().want(t, "status", status, "reason", reason)
	}
	f(get, "", 503, "cut")
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12", "", 503, "cut")
	f(get, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12", 200, "cut")
	f("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n12", 200, "cut")
	r, _ := newPlain(t, nil)
	c := r.dial("web")
	c.write("GET")
	eventually(t, "it is there", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.open) == 0 {
			return fmt.Errorf("no connection")
		}
		return nil
	})
	r.only().Cut()
	c.Conn.SetDeadline(time.Now().Add(patience))
	if rest, err := io.ReadAll(c.r); len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}

// Weir routes every request by the table that is current when the request arrives.
func TestReloadOfConnections(t *testing.T) {
	one, two := newEndpoint(t), newEndpoint(t)
	r := newRig(t, plain, nil, "@app", one.address)
	c := r.dial("web")
	c.write(get)
	s := serveOnce(one.accept(), ok("1"))
	c.wantResponse(200, "1")
	c.write(get)
	s.head()
	r.load(plain, nil, "@app", two.address)
	s.write(ok("2")) // a running exchange ends at its old endpoint
	c.wantResponse(200, "2")
	s.wantEnd(false) // weir does not keep its connection
	c.write(get)
	last := serveOnce(two.accept(), ok("3"))
	c.wantResponse(200, "3")

	r.load(strings.Replace(plain, "web", "new", 2), nil, "@app", two.address)
	c.write(get)
	serveOnce(last, ok("4"))
	if resp := c.wantResponse(200, "4"); !resp.Close {
		t.Error("a connection of a listener that is gone goes on")
	}
	c.wantEnd(false)
}

// A sender that was trusted may not be trusted after a reload.
func TestReloadOfTrust(t *testing.T) {
	e := newEndpoint(t)
	trusting := strings.Replace(plain, "protocol: http}", "protocol: http, trust_forwarded: [127.0.0.0/8]}", 1)
	r := newRig(t, trusting, nil, "@app", e.address)
	c := r.dial("web")
	var s *peer
	f := func(want string) {
		t.Helper()
		c.write("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n")
		if s == nil {
			s = e.accept()
		}
		if got := fields(s.head(), "X-Forwarded-For"); len(got) != 1 || got[0] != want {
			t.Errorf("X-Forwarded-For is %q, not %s", got, want)
		}
		s.write(ok(""))
		c.wantResponse(200, "")
	}
	f("6.6.6.6, 127.0.0.1")
	r.load(plain, nil, "@app", e.address)
	f("127.0.0.1")
	r.load(trusting, nil, "@app", e.address)
	f("6.6.6.6, 127.0.0.1")
}

// Many clients send unique data, in every way of sending and of breaking off. No client ever
// receives the data of another client.
func TestNothingLeaksBetweenClients(t *testing.T) {
	app := newHandler(t, func(w http.ResponseWriter, req *http.Request) {
		mine := req.Header.Get("X-Mine")
		if req.Header.Get("X-Break") != "" {
			w.Header().Set("Content-Length", "100000")
			io.WriteString(w, mine)
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if req.Header.Get("X-Early") == "" {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			if got := string(body); strings.ReplaceAll(got, mine, "") != "" {
				t.Errorf("the endpoint got the body %q with the head of %s", got, mine)
			}
		}
		w.Header().Set("X-Yours", mine)
		w.Header().Set("Trailer", "X-T")
		io.WriteString(w, strings.Repeat(mine, 1000))
		w.Header().Set("X-T", mine)
	})
	crowd(t, newRig(t, plain, nil, "@app", app), 40)
	crowd(t, newRig(t, secure, nil, "@app", app), 8)
}

// crowd runs many clients of all kinds, good and bad, which connect for rounds times.
func crowd(t *testing.T, r *rig, rounds int) {
	dial := r.dial
	if r.proxy.table.Load().edges["web"].protocol == config.ProtocolTLS {
		dial = func(listener string) *peer { return r.dialTLS(listener, "a", nil) }
	}
	r.proxy.SetLog(func(rec *accesslog.Record) {
		req := rec.Request
		if mine := req.GetName("x-mine"); rec.Status == 200 && !bytes.Contains(req.Bytes(req.Target), mine) {
			t.Errorf("the line of %s has the target %s", mine, req.Bytes(req.Target))
		}
	})
	var clients sync.WaitGroup
	for client := range 16 {
		clients.Go(func() {
			for i := range rounds {
				mine := fmt.Sprintf("<%d-%d>", client, i)
				c := dial("web")
				for range i % 4 {
					r.exchange(t, c, "", mine)
				}
				switch i % 8 {
				case 0:
					c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\nContent-Length: 100\r\n\r\n%s", mine, mine, mine)
					c.Close()
				case 1:
					c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\nX-Early: 1\r\nContent-Length: 10000000\r\n\r\n%s", mine, mine, mine)
					if resp, body, err := c.tryResponse("GET"); err == nil && (resp.Header.Get("X-Yours") != mine || strings.ReplaceAll(body, mine, "") != "") {
						t.Errorf("%s got %v", mine, resp)
					}
				case 2:
					c.write("GET /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\n\r\n", mine, mine)
				case 3:
					r.exchange(t, c, "X-Break: 1\r\n", mine)
				case 4:
					c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", mine, mine)
					c.tryResponse("GET")
				default:
					r.exchange(t, c, "", mine)
				}
				c.Close()
			}
		})
	}
	clients.Wait()
}

// exchange sends the client's own data and checks that the response contains that data.
func (r *rig) exchange(t *testing.T, c *peer, field, mine string) {
	c.write("POST /%s HTTP/1.1\r\nHost: a\r\nX-Mine: %s\r\n%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", mine, mine, field, len(mine), mine)
	c.write("0\r\n\r\n")
	resp, body, err := c.tryResponse("POST")
	if field != "" {
		if err == nil {
			t.Errorf("%s: a response that broke off looks whole", mine)
		}
		return
	}
	if err != nil || resp.Header.Get("X-Yours") != mine || body != strings.Repeat(mine, 1000) || resp.Trailer.Get("X-T") != mine {
		t.Errorf("%s got %v, %v", mine, resp, err)
	}
}
