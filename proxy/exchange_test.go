package proxy

import "testing"

func TestKeepAlive(t *testing.T) {
	r, e := newPlain(t, nil)
	c := r.dial("web")
	c.write("GET /one HTTP/1.1\r\nHost: a\r\n\r\n")
	s := e.accept()
	s.head()
	s.write("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none")
	c.wantResponse(200, "one")
	r.record().want(t, "kind", "http", "status", 200, "target", "/one", "reason", nil, "retries", 0)
	c.write("GET /two HTTP/1.1\r\nHost: a\r\n\r\n")
	s.head()
	s.write("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo")
	c.wantResponse(200, "two")
	r.record().want(t, "status", 200, "connect_seconds", nil)
	c.closeWrite()
	c.wantEnd(false)
	r.quiet()
	e.untouched()
}
