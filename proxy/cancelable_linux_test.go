package proxy

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// If a client is cut while weir connects to the endpoint, its exchange ends at once: in a shortage
// of descriptors weir needs the client's descriptor. The endpoint has not failed.
func TestCutWhileDialing(t *testing.T) {
	silent := func(cfg *config.Config) { // the endpoint accepts, but sends nothing in the TLS handshake
		for i := range cfg.Backends {
			cfg.Backends[i].TLS.InsecureSkipVerify, cfg.Backends[i].Secure = true, true
			cfg.Backends[i].Timeouts.Connect = 10 * patience
			if cfg.Backends[i].Protocol != config.ProtocolTCP {
				cfg.Backends[i].Protocol = config.ProtocolHTTPS
			}
		}
	}
	f := func(text string, status any, reason string, begin func(*rig) *peer, end func(*rig, *peer)) {
		t.Helper()
		e := newEndpoint(t)
		r := newRig(t, text, silent, "@app", e.address, "@ssh", e.address)
		c := begin(r)
		s := patient(e.accept())
		s.r.Peek(1) // weir waits for the endpoint's part of the handshake
		end(r, c)
		r.record().want(t, "status", status, "reason", reason)
		backend := r.set.Status()[0]
		if backend.InFlight != 0 {
			t.Errorf("%s: %d are in flight", reason, backend.InFlight)
		}
		if n := r.counter("weir_backend_endpoint_failures_total"); n != 0 {
			t.Errorf("%s: %v failures", reason, n)
		}
	}
	cut := func(r *rig, _ *peer) { r.only().Cut() }
	f(plain, 503, "cut", func(r *rig) *peer { c := r.dial("web"); c.write(get); return c }, cut)
	f(plain, 503, "cut", func(r *rig) *peer {
		c := r.dial("web")
		c.write("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n12")
		return c
	}, cut)
	f(raw, nil, "cut", func(r *rig) *peer { return r.dial("tcp") }, cut)
	two := strings.Replace(plain, "protocol: http}", "protocol: http, http2: {prior_knowledge: true}}", 1)
	f(two, 503, "cut", func(r *rig) *peer { c := r.dial2("web"); c.request(true, "/"); return c.peer }, cut)
	var reset func()
	f(two, statusClientGone, "client_gone", func(r *rig) *peer {
		c := r.dial2("web")
		id := c.request(true, "/")
		reset = func() { c.framer.WriteRSTStream(id, 8) }
		return c.peer
	}, func(*rig, *peer) { reset() })
}
