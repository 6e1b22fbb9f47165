package listener

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
)

const request = "GET / HTTP/1.1\r\n\r\n"

var (
	said = header.Header{Source: netip.MustParseAddrPort("198.51.100.9:4711"), Destination: netip.MustParseAddrPort("203.0.113.7:443"),
		TLVs: header.TLVs{Authority: "a.example"}}
	headerV1    = string(header.Append(nil, 1, &said, header.Options{}))
	headerV2    = string(header.Append(nil, 2, &said, header.Options{Checksum: true}))
	badChecksum = headerV2[:len(headerV2)-1] + "\x00"
	localV2     = string(header.Append(nil, 2, &header.Header{Local: true}, header.Options{}))
	nlbProbe    = unhex("0d0a0d0a000d0a515549540a" + "20110054" + "030004bce5951f" + "04004a" + strings.Repeat("00", 74))
)

func unhex(s string) string {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// A header with addresses of two families is accepted only by a rule with mixed_families. Otherwise
// the error names nginx and the key.
func TestMixedFamilies(t *testing.T) {
	f := func(mixed bool, mode config.HeaderMode, send, client string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ln := newFakeListener()
			w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(config.HeaderPolicy{Name: "edge", HeaderTimeout: timeout,
				Rules: []config.HeaderRule{{From: prefixes("0.0.0.0/0"), Mode: mode, MixedFamilies: mixed}}})})
			c := ln.dial(balancer)
			go io.WriteString(c, send+"GET")
			synctest.Wait()
			switch {
			case client == "":
				if len(w.refusals) != 1 || w.refusals[0].Reason.String() != "header_malformed" || !strings.Contains(w.refusals[0].Err.Error(), "nginx") ||
					!strings.Contains(w.refusals[0].Err.Error(), "mixed_families in the rule of proxy_protocol.edge") {
					t.Errorf("%s: %+v", send, w.refusals)
				}
			case len(w.handled) != 1:
				t.Errorf("%s: %+v", send, w.refusals)
			default:
				h := <-w.handled
				if got := h.Client.String(); got != client {
					t.Errorf("%s: the client is %s", send, got)
				}
				h.Close()
			}
			c.Close()
			w.close()
		})
	}
	const nginx, other = "PROXY TCP6 2001:db8::1 192.0.2.1 1000 443\r\n", "PROXY TCP4 192.0.2.7 2001:db8::1 1000 443\r\n"
	for _, mode := range []config.HeaderMode{config.HeaderRequire, config.HeaderOptional} {
		f(true, mode, nginx, "[2001:db8::1]:1000")
		f(true, mode, other, "192.0.2.7:1000")
		f(false, mode, nginx, "")
		f(false, mode, other, "")
	}
	f(true, config.HeaderDiscard, nginx, balancer)
	f(false, config.HeaderDiscard, nginx, "")
}

// The rules decide which peers must send a header, and what happens with their bytes.
func TestHeaderPolicy(t *testing.T) {
	// f dials from peer and sends the bytes. Then it ends its stream if ends is true, otherwise it sends
	// nothing more. Empty version and result: weir counts nothing. Empty client: weir refuses the connection.
	f := func(peer, send string, ends bool, version, result, client, read string) {
		t.Helper()
		name := fmt.Sprintf("%s sends %.20q %v", peer, send, ends)
		synctest.Test(t, func(t *testing.T) {
			ln := newFakeListener()
			w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(edge)})
			c := ln.dial(peer)
			go func() {
				io.WriteString(c, send)
				if ends {
					c.Close()
				}
			}()
			begin := time.Now()
			refused := make(chan struct{})
			if client == "" {
				go func() {
					defer close(refused)
					if b, err := io.ReadAll(c); len(b) > 0 || !ends && err != nil {
						t.Errorf("%s: read %q, %v", name, b, err)
					}
				}()
				<-refused
				synctest.Wait()
				if len(w.handled) > 0 {
					t.Fatalf("%s: it was handled", name)
				}
				if took := time.Since(begin); result == "late" && took != timeout || result != "late" && took != 0 {
					t.Errorf("%s: it took %v", name, took)
				}
				if len(w.refusals) != 1 || w.refusals[0].Reason.String() != "header_"+result || w.refusals[0].Silent != (send == "" && result == "truncated") {
					t.Errorf("%s: refused with %+v", name, w.refusals)
				}
			} else {
				synctest.Wait()
				if len(w.handled) != 1 || time.Since(begin) != 0 {
					t.Fatalf("%s: it was not handled at once, but %+v", name, w.refusals)
				}
				h := <-w.handled
				got := make([]byte, len(read))
				if _, err := io.ReadFull(h, got); err != nil || string(got) != read {
					t.Errorf("%s: read %q, %v", name, got, err)
				}
				if h.Client.String() != client || h.Peer.String() != peer {
					t.Errorf("%s: client %v, peer %v", name, h.Client, h.Peer)
				}
				if want := (client == said.Source.String()); (h.Local == said.Destination) != want {
					t.Errorf("%s: local %v", name, h.Local)
				}
				if h.BytesRead != int64(len(read)) {
					t.Errorf("%s: %d bytes were read", name, h.BytesRead)
				}
				if v := [...]string{"none", "v1", "v2"}[h.Header.Version]; version != "" && v != version || version == "" && v != "none" {
					t.Errorf("%s: the header is %+v", name, h.Header)
				}
				if h.State() != conn.Pending {
					t.Errorf("%s: it is %v", name, h.State())
				}
				h.Close()
			}
			c.Close()
			if version != "" {
				w.wantHeaders(version, result, 1)
			}
			w.close()
		})
	}
	const open, ends = false, true
	client := said.Source.String()
	tls := "\x16\x03\x01\x02\x00\x01\x00"

	for _, peer := range []string{balancer, "[fd00::1]:1000", "[fe80::1]:1000", "[::ffff:10.200.0.1]:1000"} {
		if peer[1] == ':' { // peer addresses are never mapped
			peer = "10.200.0.1:1000"
		}
		f(peer, headerV1+request, open, "v1", "accepted", client, request)
		f(peer, headerV2+request, open, "v2", "accepted", client, request)
		f(peer, headerV2, open, "v2", "accepted", client, "")
		f(peer, "PROXY UNKNOWN\r\n"+request, open, "v1", "local", peer, request)
		f(peer, localV2+request, open, "v2", "local", peer, request)
		f(peer, nlbProbe, open, "v2", "local", peer, "")
		f(peer, nlbProbe+request, open, "v2", "local", peer, request)
		f(peer, request, open, "none", "missing", "", "")
		f(peer, tls, open, "none", "missing", "", "")
		f(peer, "", open, "none", "late", "", "")
		f(peer, headerV1[:1], open, "v1", "late", "", "")
		f(peer, headerV1[:20], open, "v1", "late", "", "")
		f(peer, headerV2[:20], open, "v2", "late", "", "")
		f(peer, "", ends, "none", "truncated", "", "")
		f(peer, headerV1[:20], ends, "v1", "truncated", "", "")
		f(peer, headerV2[:20], ends, "v2", "truncated", "", "")
		f(peer, "PROXY TCP5 ", open, "v1", "malformed", "", "")
		f(peer, "PROXY TCP4 1.2.3.4 1.2.3.4 1 02\r\n", open, "v1", "malformed", "", "")
		f(peer, headerV2[:12]+"\x31", open, "v2", "malformed", "", "")
		f(peer, badChecksum, open, "v2", "checksum", "", "")
	}

	f(oddOne, headerV1+request, open, "v1", "accepted", oddOne, request)
	f(oddOne, headerV2+request, open, "v2", "accepted", oddOne, request)
	f(oddOne, nlbProbe+request, open, "v2", "local", oddOne, request)
	f(oddOne, request, open, "none", "missing", "", "")
	f(oddOne, "", open, "none", "late", "", "")
	f(oddOne, headerV2[:20], ends, "v2", "truncated", "", "")
	f(oddOne, badChecksum, open, "v2", "checksum", "", "")

	f(neighbor, headerV1+request, open, "v1", "accepted", client, request)
	f(neighbor, headerV2+request, open, "v2", "accepted", client, request)
	f(neighbor, localV2+request, open, "v2", "local", neighbor, request)
	f(neighbor, request, open, "none", "absent", neighbor, request)
	f(neighbor, tls, open, "none", "absent", neighbor, tls)
	f(neighbor, "PUT", open, "none", "absent", neighbor, "PUT")
	f(neighbor, "PR", open, "v1", "late", "", "")
	f(neighbor, "", open, "none", "late", "", "")
	f(neighbor, "", ends, "none", "truncated", "", "")
	f(neighbor, headerV1[:20], open, "v1", "late", "", "")
	f(neighbor, headerV2[:20], ends, "v2", "truncated", "", "")
	f(neighbor, "PROXY TCP5 ", open, "v1", "malformed", "", "")
	f(neighbor, badChecksum, open, "v2", "checksum", "", "")

	for _, peer := range []string{insider, "172.32.0.9:1000"} {
		f(peer, "", open, "", "", peer, "")
		f(peer, headerV1, open, "", "", peer, headerV1)
		f(peer, nlbProbe, open, "", "", peer, nlbProbe)
	}

	for _, peer := range []string{enemy, stranger, "[2001:db8::1]:1000"} {
		f(peer, "", open, "none", "denied", "", "")
	}
}

// A connection gets the content of its PROXY header, unless the mode discards it.
func TestHeaderIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(edge)})
		read := func(peer string) header.Header {
			c := ln.dial(peer)
			defer c.Close()
			go io.WriteString(c, headerV2)
			h := <-w.handled
			defer h.Close()
			return *h.Header
		}
		if h := read(balancer); h.Source != said.Source || h.TLVs.Authority != "a.example" || h.Version != 2 || h.Local {
			t.Errorf("%+v", h)
		}
		if h := read(oddOne); h.Source.IsValid() || h.TLVs.Authority != "" || h.Version != 2 || !h.Local {
			t.Errorf("discarded, it is %+v", h)
		}
		w.close()
	})
}

// Peers on a Unix socket match no rule: with a policy they must send a header.
func TestUnixPeers(t *testing.T) {
	if m := NewPolicy(edge).rule(netip.Addr{}).mode; m != config.HeaderRequire {
		t.Error(m)
	}
	if m := (*Policy)(nil).rule(netip.Addr{}).mode; m != config.HeaderNone {
		t.Error(m)
	}
	if m := NewPolicy(edge).rule(netip.MustParseAddr("fe80::1%eth0")).mode; m != config.HeaderRequire {
		t.Errorf("a link-local peer: %v", m)
	}
}

// The problem for which weir was written: a PROXY header arrives in two pieces, split at any byte, with a
// pause between them. If the pieces arrive before the deadline, weir serves the connection, with any number
// of pauses. Otherwise weir closes it without writing a byte.
func TestHeaderInPieces(t *testing.T) {
	for _, h := range []string{headerV1, headerV2, nlbProbe} {
		for at := range len(h) {
			pieces := []string{h[:at], h[at:] + request}
			inPieces(t, pieces, timeout-time.Millisecond, true)
			inPieces(t, pieces, timeout+time.Millisecond, false)
			inPieces(t, pieces, time.Hour, false)
		}
		bytes := strings.Split(h, "")
		inPieces(t, bytes, timeout/time.Duration(len(bytes)), true)
		inPieces(t, bytes, 2*timeout/time.Duration(len(bytes)), false) // the deadline does not move
	}
}

func inPieces(t *testing.T, pieces []string, pause time.Duration, served bool) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(edge)})
		onePiecemeal(t, w, ln.dial(balancer), pieces, pause, served)
		if !served {
			w.wantRejected(ReasonHeaderLate, 1)
		}
		w.close()
	})
}

func onePiecemeal(t *testing.T, w *world, c net.Conn, pieces []string, pause time.Duration, served bool) {
	defer c.Close()
	ended := make(chan struct{})
	begin := time.Now()
	go func() {
		defer close(ended)
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
	}()
	for i, p := range pieces {
		if i > 0 {
			time.Sleep(pause)
		}
		if _, err := io.WriteString(c, p); err != nil && served {
			t.Errorf("of %q with pauses of %v, %q: %v", pieces, pause, p, err)
		}
	}
	if served {
		synctest.Wait()
		if len(w.handled) == 0 {
			t.Errorf("%q with pauses of %v was not served", pieces, pause)
		} else {
			(<-w.handled).Close()
		}
	}
	<-ended
	if len(w.handled) > 0 && !served {
		t.Errorf("%q with pauses of %v was served", pieces, pause)
	}
	if took := time.Since(begin); !served && took < timeout {
		t.Errorf("ended after %v", took)
	}
}

func TestThousandLateHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{PendingPerSource: 10}, Settings{Policy: NewPolicy(edge)})
		done := make(chan struct{})
		const many = 1000
		for i := range many {
			h := []string{headerV1, headerV2}[i%2]
			at := i % len(h)
			c := ln.dial(balancer)
			go func() {
				onePiecemeal(t, w, c, []string{h[:at], h[at:] + request}, timeout+time.Duration(i+1)*time.Millisecond, false)
				done <- struct{}{}
			}()
		}
		for range many {
			<-done
		}
		w.wantRejected(ReasonHeaderLate, many)
		w.close()
	})
}

// If a connection is cut while it waits for the PROXY header, weir counts no error of the peer.
func TestCutBeforeHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := newFakeListener()
		w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(edge)})
		defer ln.dial(balancer).Close()
		synctest.Wait()
		w.tracker.Each(func(c *conn.Conn) { c.Cut() })
		synctest.Wait()
		if len(w.refusals) != 0 || w.tracker.Open() != 0 {
			t.Errorf("%+v, %d open", w.refusals, w.tracker.Open())
		}
		w.close()
	})
}

// The same over real sockets, for a connection that waits in the poller.
func TestHeaderOverTCP(t *testing.T) {
	checkLeaks(t)
	ln := openSocket(t, "tcp", "127.0.0.1:0")
	policy := NewPolicy(config.HeaderPolicy{Name: "edge", HeaderTimeout: time.Second, Rules: []config.HeaderRule{
		{From: prefixes("127.0.0.0/8", "::1/128"), Mode: config.HeaderRequire}}})
	w := serve(t, ln, config.Limits{}, Settings{Policy: policy, Handle: echo})
	for _, h := range []string{headerV1, headerV2} {
		for at := range len(h) {
			c := dial(t, ln)
			io.WriteString(c, h[:at])
			if at%8 == 0 { // now and then weir reads this part alone
				eventually(t, "the connection waits", func() bool { return w.tracker.Open() > 0 })
			}
			io.WriteString(c, h[at:]+request)
			wantEcho(t, c, request)
		}
	}
	late := []net.Conn{dial(t, ln)}
	for _, h := range []string{headerV1, headerV2} {
		for at := 1; at < len(h); at++ {
			c := dial(t, ln)
			io.WriteString(c, h[:at])
			late = append(late, c)
		}
	}
	for _, c := range late {
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read %q, %v", b, err)
		}
		c.Close()
	}
	eventually(t, "all are closed", func() bool { return w.tracker.Open() == 0 })
	w.wantRejected(ReasonHeaderLate, float64(len(late)))
	w.close()
}

// A header that ends too early is truncated, not late, in whatever way the end arrives.
func TestTruncatedOverTCP(t *testing.T) {
	checkLeaks(t)
	ln := openSocket(t, "tcp", "127.0.0.1:0")
	policy := NewPolicy(config.HeaderPolicy{Name: "edge", HeaderTimeout: time.Minute, Rules: []config.HeaderRule{
		{From: prefixes("127.0.0.0/8"), Mode: config.HeaderRequire}}})
	w := serve(t, ln, config.Limits{}, Settings{Policy: policy, Handle: echo})
	for _, h := range []string{headerV1, headerV2} {
		for at := range len(h) {
			c := dial(t, ln)
			io.WriteString(c, h[:at])
			c.(*net.TCPConn).CloseWrite()
			defer func() {
				if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
					t.Errorf("read %q, %v", b, err)
				}
				c.Close()
			}()
		}
	}
	eventually(t, "all are closed", func() bool {
		return w.tracker.Open() == 0 && w.tracker.next.Load() == uint32(len(headerV1)+len(headerV2))
	})
	w.wantRejected(ReasonHeaderTruncated, float64(len(headerV1)+len(headerV2)))
	w.close()
}

// A thousand silent connections at the same time hold no buffers, and weir closes them at their deadline.
func TestThousandSilentOverTCP(t *testing.T) {
	checkLeaks(t)
	ln := openSocket(t, "tcp", "127.0.0.1:0")
	policy := NewPolicy(config.HeaderPolicy{Name: "edge", HeaderTimeout: time.Second, Rules: []config.HeaderRule{
		{From: prefixes("127.0.0.0/8"), Mode: config.HeaderOptional}}})
	w := serve(t, ln, config.Limits{}, Settings{Policy: policy, Handle: echo})
	var silent []net.Conn
	for range 1000 {
		silent = append(silent, dial(t, ln))
	}
	for _, c := range silent {
		if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
			t.Fatalf("read %q, %v", b, err)
		}
		c.Close()
	}
	w.close()
	w.wantHeaders("none", "late", 1000)
}

func echo(c *conn.Conn) {
	defer c.Close()
	c.Established()
	io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
}

func dial(t *testing.T, ln net.Listener) net.Conn {
	t.Helper()
	c, err := net.DialTimeout(ln.Addr().Network(), ln.Addr().String(), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

func wantEcho(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Errorf("read %q, %v", got, err)
	}
	c.Close()
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// With mode none, and without a policy, weir reads nothing: a server may send first.
func TestServerSpeaksFirst(t *testing.T) {
	checkLeaks(t)
	ln := openSocket(t, "tcp", "127.0.0.1:0")
	w := serve(t, ln, config.Limits{}, Settings{Handle: func(c *conn.Conn) {
		io.WriteString(c, "SSH-2.0-server\r\n")
		c.Close()
	}})
	wantEcho(t, dial(t, ln), "SSH-2.0-server\r\n")
	// weir does not wait for bytes after the header: a server may send first.
	w.l.Update(Settings{Policy: NewPolicy(config.HeaderPolicy{Name: "edge", HeaderTimeout: time.Minute, Rules: []config.HeaderRule{
		{From: prefixes("0.0.0.0/0"), Mode: config.HeaderRequire}}}), Handle: w.l.settings.Load().Handle})
	for _, h := range []string{headerV1, headerV2} {
		c := dial(t, ln)
		io.WriteString(c, h)
		wantEcho(t, c, "SSH-2.0-server\r\n")
	}
	w.close()
}

func TestPolicyPrefersTheLongestPrefix(t *testing.T) {
	p := NewPolicy(config.HeaderPolicy{Rules: []config.HeaderRule{
		{From: prefixes("0.0.0.0/0", "::/0"), Mode: config.HeaderNone},
		{From: prefixes("10.0.0.0/8"), Mode: config.HeaderRequire},
		{From: prefixes("10.1.0.0/16", "2001:db8::/32"), Mode: config.HeaderDeny},
		{From: prefixes("10.1.2.3/32", "10.1.2.4/32"), Mode: config.HeaderOptional},
	}})
	slices.Reverse(p.rules)
	slices.SortStableFunc(p.rules, func(a, b rule) int { return b.from.Bits() - a.from.Bits() })
	f := func(peer string, want config.HeaderMode) {
		t.Helper()
		if got := p.rule(netip.MustParseAddr(peer)).mode; got != want {
			t.Errorf("%s: %s, want %s", peer, got, want)
		}
	}
	f("8.8.8.8", config.HeaderNone)
	f("2001:db9::1", config.HeaderNone)
	f("10.2.0.1", config.HeaderRequire)
	f("10.1.2.2", config.HeaderDeny)
	f("2001:db8::1", config.HeaderDeny)
	f("10.1.2.3", config.HeaderOptional)
	f("::ffff:10.1.2.4", config.HeaderOptional)
}
