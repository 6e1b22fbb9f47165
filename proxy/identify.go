package proxy

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"time"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/accesslog"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/tls/hello"
	"github.com/weirproxy/weir/tls/policy"
)

const (
	sshBanner   = "SSH-" // RFC 4253, section 4.2
	tlsRecord   = 0x16   // a handshake record, RFC 8446, section 5.1
	notTLS      = "not_tls"
	notSSH      = "not_ssh"
	badHello    = "bad_client_hello"
	noHandshake = "handshake"
)

var errNotSSH = errors.New("the connection begins with the letter S, but is not SSH")

// servePlain serves a connection of an http listener. It reads the first bytes only if an SSH
// route shares the listener.
func (p *Proxy) servePlain(c *conn.Conn, t *Table, e *edge) {
	if e.ssh != nil {
		ssh, err := e.isSSH(c)
		switch {
		case err != nil && !errors.Is(err, errNotSSH):
			p.refuse(c, e, "first_bytes", e.explain(nil, err))
			return
		case ssh:
			c.Established()
			p.tunnel(c, e, e.ssh)
			return
		}
	}
	c.Established()
	newHTTP1Session(p, c, t, e, nil, nil).serveAll(nil)
}

// isSSH reports whether a connection belongs to the SSH route: it begins as SSH, or is silent for
// silent_after. It sets the read deadline for the handshake.
func (e *edge) isSSH(c *conn.Conn) (bool, error) {
	begun := time.Now()
	if silence := e.ssh.config.SilentAfter; silence > 0 {
		c.SetReadDeadline(begun.Add(silence))
		if _, err := c.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) && !c.HasPeeked() {
			return true, nil
		}
	}
	c.SetReadDeadline(begun.Add(e.timeouts.Handshake))
	return beginsAsSSH(c)
}

// beginsAsSSH waits only for as many bytes as it needs to decide.
func beginsAsSSH(c *conn.Conn) (bool, error) {
	for n := 1; ; n++ {
		b, err := c.Peek(n)
		if err != nil {
			return false, err
		}
		n = min(len(b), len(sshBanner))
		if string(b[:n]) != sshBanner[:n] {
			if b[0] == sshBanner[0] {
				return false, errNotSSH
			}
			return false, nil
		}
		if n == len(sshBanner) {
			return true, nil
		}
	}
}

// serveTLS serves a connection of a tls listener: SSH if a route has it, passthrough for some
// hosts, and otherwise TLS that weir terminates. It closes every other connection without
// sending a byte.
func (p *Proxy) serveTLS(c *conn.Conn, t *Table, e *edge) {
	nc := &handshakeConn{Conn: c.NetConn(), memory: &handshakeMemory{proxy: p, conn: c}}
	defer nc.memory.release()
	if e.ssh == nil {
		c.SetReadDeadline(time.Now().Add(e.timeouts.Handshake))
	} else {
		ssh, err := e.isSSH(c)
		switch {
		case err != nil:
			p.refuseHello(c, e, "first_bytes", err)
			return
		case ssh:
			c.Established()
			p.tunnel(c, e, e.ssh)
			return
		}
	}
	if e.passthrough {
		info, raw, err := hello.Read(nc, 0)
		if err != nil {
			p.refuseHello(c, e, badHello, err)
			return
		}
		c.Unread(raw) // even in the format of SSLv2, which names no host: terminate refuses it
		if h := e.lookup([]byte(info.ServerName)); h != nil && h.passthrough != nil {
			c.Established()
			p.tunnelTo(c, nil, e, h.passthrough, info.ServerName, nil, nc.memory)
			return
		}
	}
	p.terminate(c, t, e, nc)
}

// handshakeMemory charges the client's network for a handshake that sends more than usual: until
// it ends, or until the tunnel of a passthrough starts, weir holds all that came.
type handshakeMemory struct {
	proxy   *Proxy
	conn    *conn.Conn
	account *memory.Account // nil: nothing is charged
}

const (
	freeHandshake = 4 << 10 // bytes that are not charged: real clients send less
	// handshakeCopies is how often weir holds each byte: as it came, in a whole message, and as the
	// garbage of both while they grow.
	handshakeCopies = 3
)

// read charges what came. It returns false if the account refuses.
func (m *handshakeMemory) read() bool {
	if m.conn.BytesRead <= freeHandshake {
		return true
	}
	if m.account == nil {
		m.account = new(memory.Account)
		m.account.Open(m.proxy.Memory, m.conn.Network().Prefix(), m.conn)
	}
	return m.account.Charge(int(m.conn.BytesRead*handshakeCopies - m.account.Used()))
}

// release ends the charge. It may be called twice, and on nil.
func (m *handshakeMemory) release() {
	if m != nil {
		m.account.Close()
	}
}

// handshakeConn is the connection below TLS.
type handshakeConn struct {
	net.Conn
	memory *handshakeMemory // nil after the handshake
	tls    *tls.Conn        // set after the handshake
}

var errLateHandshake = errors.New("the client sent a large handshake message after the handshake")

func (c *handshakeConn) Read(p []byte) (int, error) {
	if c.tls != nil && conn.HandshakeBytes(c.tls) > freeHandshake { // crypto/tls would keep 64 KiB
		return 0, errLateHandshake
	}
	n, err := c.Conn.Read(p)
	if c.memory != nil && err == nil && !c.memory.read() {
		return 0, message.ErrMemory
	}
	return n, err
}

// refuseHello ends a connection to a tls listener before a handshake began. It counts as a
// failed handshake.
func (p *Proxy) refuseHello(c *conn.Conn, e *edge, reason string, err error) {
	err = e.explain(nil, err)
	p.Handshakes.Handshake(e.name, "", 0, 0, err)
	if p.Clients != nil {
		p.Clients.Note(policy.Handshake{Listener: e.name, Client: c.Client.Addr(), Err: err})
	}
	p.refuseAs(c, &accesslog.Record{Listener: e.name, Reason: handshakeReason(reason, err), Result: policy.HandshakeResult(err), Err: err})
}

// handshakeReason returns reason, or not_tls if the client did not send TLS, or memory.
func handshakeReason(reason string, err error) string {
	if errors.Is(err, message.ErrMemory) {
		return message.ErrMemory.Reason
	}
	var notRecord tls.RecordHeaderError
	if errors.As(err, &notRecord) && policy.HandshakeResult(err) != policy.ResultSSLv2Hello {
		return notTLS
	}
	return reason
}

// handshake is the state of a handshake: the input and the result of choosing a policy.
type handshake struct {
	proxy     *Proxy
	conn      *conn.Conn
	edge      *edge
	sni       string
	host      *host
	tunnel    *Route // the route of a tunnel whose TLS weir terminates; nil: HTTP
	policy    *policy.Policy
	hello     *tls.ClientHelloInfo // nil: weir has not read one
	challenge bool                 // the client is a certificate authority, see challenge.go
	refused   error                // the reason why there is no certificate for the name
}

// choose finds the policy for a ClientHello, by its SNI or the absence of one, and by the
// client's network.
func (h *handshake) choose(hi *tls.ClientHelloInfo) (*policy.Policy, error) {
	h.hello = hi
	h.sni = hello.Name(hi.ServerName)
	if h.sni != "" {
		h.host = h.edge.lookup([]byte(h.sni))
	} else {
		h.host = h.edge.opened()
	}
	if h.host != nil && h.host.passthrough != nil {
		// Only the inner ClientHello of ECH can name such a host here, because serveTLS has read
		// the outer one. After weir has decrypted the inner one, it cannot pass the TLS through.
		return nil, errECHPassthrough
	}
	if isChallenge(hi) {
		h.challenge = true
		h.policy = h.proxy.answer(hi)
		return h.policy, nil
	}
	if h.refused = h.chooseTunnel(); h.refused != nil {
		return nameless, nil
	}
	h.policy = h.edge.policyFor(h.host, h.sni, h.conn.Client.Addr())
	switch {
	case h.tunnel != nil:
		return h.policy.Offering(h.tunnel.config.ALPN), nil
	case h.edge.http2:
		return h.policy.OfferHTTP2(hi), nil
	}
	return h.policy, nil
}

// chooseInTurn is choose. Before the handshake goes on, it waits for a turn, because the key exchange and the
// signature that follow take 0.2 ms of a processor.
func (h *handshake) chooseInTurn(hi *tls.ClientHelloInfo) (*policy.Policy, error) {
	p, err := h.choose(hi)
	if err == nil {
		pause.Turn()
	}
	return p, err
}

// terminate does the handshake, and serves the decrypted connection.
func (p *Proxy) terminate(c *conn.Conn, t *Table, e *edge, nc *handshakeConn) {
	h := &handshake{proxy: p, conn: c, edge: e}
	tc := tls.Server(nc, policy.Server(h.chooseInTurn, t.ech))
	begun := time.Now()
	err := tc.Handshake()
	if err == nil && nc.memory.account != nil {
		conn.ReleaseTLS(tc) // large buffers, which would wait here for a small record
	}
	nc.memory.release()
	nc.memory, nc.tls = nil, tc
	if err == nil {
		took := time.Since(begun)
		c.NoteHandshake(took)
		p.Metrics.handshook(e, took)
	}
	if err != nil {
		err = e.explain(tc, h.reason(err))
	}
	state := tc.ConnectionState()
	p.handshakeEnded(h, &state, err)
	switch {
	case err != nil:
		r := &accesslog.Record{Listener: e.name, Offer: offerOf(h.hello),
			Reason: handshakeReason(noHandshake, err), Result: policy.HandshakeResult(err), Err: err}
		sec := newSecurity(tc, h.sni, h.policy)
		sec.describe(r)
		p.refuseAs(c, r)
	case h.challenge:
		p.answered(h, tc)
	default:
		h.hello = nil // not needed any more, and larger than the other fields
		c.Established()
		if h.tunnel != nil {
			p.tunnelTo(c, tc, e, h.tunnel, h.sni, h.policy, nil)
			return
		}
		if state.NegotiatedProtocol == policy.HTTP2 {
			serveHTTP2(newClientSide(p, c, t, e, tc, h), c, tc)
		} else {
			newHTTP1Session(p, c, t, e, tc, h).serveAll(nil)
		}
	}
}

// handshakeEnded counts a handshake and remembers which TLS features the client needs.
func (p *Proxy) handshakeEnded(h *handshake, state *tls.ConnectionState, err error) {
	p.Handshakes.Handshake(h.edge.name, h.name(), state.Version, state.CipherSuite, err)
	if p.Clients == nil || h.challenge {
		return
	}
	n := policy.Handshake{Listener: h.edge.name, Policy: h.name(), Client: h.conn.Client.Addr(), Hello: h.hello,
		Version: state.Version, Suite: state.CipherSuite, Err: err}
	if h.host != nil {
		n.Host = h.host.name
	}
	p.Clients.Note(n)
}

func (h *handshake) name() string {
	if h.policy == nil {
		return ""
	}
	return h.policy.Name
}
