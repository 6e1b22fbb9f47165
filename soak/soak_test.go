package soak

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/listener/header"
)

// TestNothingToFind: correct behaviour is no anomaly.
func TestNothingToFind(t *testing.T) {
	f := func(name string, handle func(net.Conn), change func(*Options)) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			r := soak(t, serve(t, handle), change, func(s *Snapshot) bool { return s.Exchanges >= 9 && s.Peak >= 3 })
			wantKinds(t, r)
			if r.Requests < 9 || r.Peak != 3 || r.Wanted != 3 {
				t.Errorf("%d exchanges on at most %d of %d connections", r.Requests, r.Peak, r.Wanted)
			}
		})
	}
	often := func(more func(*Options)) func(*Options) {
		return func(o *Options) {
			o.Every = time.Millisecond
			more(o)
		}
	}
	f("HTTP/1.1", always(ok), often(func(*Options) {}))
	f("HTTP/1.1 over TLS", overTLS(always(ok)), often(func(o *Options) { o.TLS = true }))
	f("bodies", answering(func(_ int, r *http.Request) string {
		if r.Method != "POST" || r.ContentLength != 100_000 || r.Header.Get("X-Who") != "me" || r.Host != "app.example.org" || r.URL.Path != "/there" {
			t.Errorf("the request is %s %s of %s, %d bytes, %v", r.Method, r.URL, r.Host, r.ContentLength, r.Header)
		}
		return ok
	}), often(func(o *Options) {
		o.Body, o.Path, o.Host, o.Fields = 100_000, "/there", "app.example.org", []string{"X-Who: me"}
	}))
	f("chunks, after interim responses", always("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"),
		often(func(*Options) {}))
	f("another status", always("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), often(func(o *Options) { o.Status = []string{"2xx", "404"} }))
	f("raw", func(c net.Conn) { io.Copy(c, c) }, often(func(o *Options) {
		o.Protocol, o.Send, o.Reply = Raw, []byte("hello\x00\xff\n"), "lo\\x00"
	}))
	f("raw over TLS", overTLS(func(c net.Conn) { io.Copy(c, c) }), often(func(o *Options) {
		o.Protocol, o.TLS, o.Send, o.Reply = Raw, true, []byte("hello"), "hello"
	}))
}

// TestConnectionsThatEndAsTheyMay: a close between exchanges is no anomaly, and another
// connection replaces the closed one.
func TestConnectionsThatEndAsTheyMay(t *testing.T) {
	noLeaks(t)
	once := func(c net.Conn) {
		if _, err := http.ReadRequest(newReader(c)); err == nil {
			io.WriteString(c, ok)
		}
	}
	r := soak(t, serve(t, once), func(o *Options) {}, func(s *Snapshot) bool { return s.EndedIdle >= 5 })
	wantKinds(t, r)
	if r.EndedIdle < 5 || r.Opened < 5 {
		t.Errorf("%d connections ended idle, %d were opened", r.EndedIdle, r.Opened)
	}
	r = soak(t, serve(t, always("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")), func(o *Options) {}, exchanges(7))
	wantKinds(t, r)
}

// TestAnomalies: each kind is found and has the right name.
func TestAnomalies(t *testing.T) {
	f := func(name string, want Kind, detail string, handle func(net.Conn), change func(*Options)) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			r := soak(t, serve(t, handle), change, anomalies(3))
			wantKinds(t, r, want)
			for _, a := range r.Anomalies {
				if a.Count < 3 || len(a.Examples) < 3 || !strings.Contains(a.Examples[0].Detail, detail) || a.Examples[0].From == "" {
					t.Errorf("%d times, as in %+v; want %q", a.Count, a.Examples, detail)
				}
			}
		})
	}
	plain := func(*Options) {}
	secure := func(o *Options) { o.TLS = true }
	const answer400 = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n400 Bad Request"
	f("an answer to a ClientHello in plain text", PlaintextOnTLS, "HTTP/1.1 400 Bad Request", func(c net.Conn) {
		c.Read(make([]byte, 10)) // the rest stays unread, which causes a reset
		io.WriteString(c, answer400)
	}, secure)
	f("plain text after a handshake", PlaintextOnTLS, "HTTP/1.1 400", func(c net.Conn) {
		overTLS(func(s net.Conn) {
			always("")(s)
			io.WriteString(c, answer400)
		})(c)
	}, secure)
	f("a client address that is another's", WrongAddress, `saw "203.0.113.9"`,
		always("HTTP/1.1 200 OK\r\nX-Client: 203.0.113.9\r\nContent-Length: 0\r\n\r\n"), func(o *Options) { o.AddressField = "x-client" })
	f("a client address in a body that is another's", WrongAddress, `saw "203.0.113.9"`,
		always("HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\nclient=203.0.113.9"), func(o *Options) { o.AddressPattern = `client=(\S+)` })
	f("no client address", WrongAddress, "nothing in the body", always(ok), func(o *Options) { o.AddressPattern = `client=(\S+)` })
	f("reset", Reset, "", func(c net.Conn) {
		c.Read(make([]byte, 512))
		c.(*net.TCPConn).SetLinger(0)
	}, plain)
	f("hang", Timeout, "waiting for a response", func(c net.Conn) { io.Copy(io.Discard, c) }, func(o *Options) { o.Timeout = 500 * time.Millisecond })
	f("hang in the handshake", Timeout, "handshake", func(c net.Conn) { io.Copy(io.Discard, c) }, func(o *Options) { o.TLS, o.Timeout = true, 500*time.Millisecond })
	f("short body", ShortBody, "5 bytes of 10", func(c net.Conn) {
		http.ReadRequest(newReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort")
	}, plain)
	f("a chunked body that does not end", ShortBody, "2 bytes of an unknown number", func(c net.Conn) {
		http.ReadRequest(newReader(c))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n")
	}, plain)
	f("unexpected status", UnexpectedStatus, `503 Service Unavailable: "busy"`, always("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"), plain)
	f("closed", Closed, "waiting for a response", func(c net.Conn) { http.ReadRequest(newReader(c)) }, plain)
	f("no HTTP", Malformed, "malformed HTTP", always("220 mail.example.org ready\r\n"), plain)
	f("more than was asked for", Malformed, "later", always(ok+"later"), plain)
	f("bytes while idle", Malformed, "HTTP/1.1 408", func(c net.Conn) {
		http.ReadRequest(newReader(c))
		io.WriteString(c, ok)
		time.Sleep(30 * time.Millisecond) // without this pause, the case would be the same as the one above
		io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n")
	}, plain)
	f("a TLS alert", Handshake, "handshake failure", func(c net.Conn) {
		c.Read(make([]byte, 4096))
		c.Write([]byte{21, 3, 3, 0, 2, 2, 40})
		io.Copy(io.Discard, c)
	}, secure)
	f("another protocol in TLS", Handshake, "ALPN", overTLS(always(ok)), func(o *Options) { o.TLS, o.Protocol = true, HTTP2 })
	f("another reply", UnexpectedReply, "SSH-1.99", func(c net.Conn) { io.WriteString(c, "SSH-1.99-old\r\n") },
		func(o *Options) { o.Protocol, o.Reply = Raw, "^SSH-2.0" })
}

func TestRefused(t *testing.T) {
	r := soak(t, "127.0.0.1:1", func(*Options) {}, anomalies(3))
	wantKinds(t, r, Refused)
	if n := r.AnomaliesInAll; n < 3 || r.Refused != n || r.Targets[0].Refused != n || r.Requests != 0 {
		t.Errorf("%d connects were refused, %d of the target, of %d anomalies, and %d requests ended well", r.Refused, r.Targets[0].Refused, n, r.Requests)
	}
	var text strings.Builder
	if err := r.Text(&text); err != nil || !strings.Contains(text.String(), fmt.Sprintf("\nconnect refused  %d times, before a request was sent\n", r.Refused)) {
		t.Errorf("%v, and the report is\n%s", err, text.String())
	}
}

// TestClients: each PROXY header has a client address of its own, and the other side sees
// it. Without headers, the other side sees the local address of the connection.
func TestClients(t *testing.T) {
	f := func(name string, version int, secure bool, networks ...string) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			var lock sync.Mutex
			seen := map[netip.Addr]bool{}
			handle := func(c net.Conn, h *header.Header) {
				address := netip.MustParseAddrPort(c.RemoteAddr().String()).Addr()
				if h != nil {
					address = h.Source.Addr()
					if h.Version != version {
						t.Errorf("the header has version %d", h.Version)
					}
				}
				lock.Lock()
				seen[address] = true
				lock.Unlock()
				always(fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Client: %s\r\nContent-Length: 0\r\n\r\n", netip.AddrPortFrom(address, 1)))(c)
			}
			serving := func(c net.Conn) { handle(c, nil) }
			if version > 0 {
				serving = behindHeader(t, func(c net.Conn, h *header.Header) {
					if secure {
						overTLS(func(c net.Conn) { handle(c, h) })(c)
						return
					}
					handle(c, h)
				})
			}
			r := soak(t, serve(t, serving), func(o *Options) {
				o.TLS, o.Header, o.Connections, o.AddressField = secure, version, 20, "X-Client"
				o.Clients, _ = ParsePrefixes(networks)
			}, exchanges(20))
			wantKinds(t, r)
			if len(seen) != 20 && (version > 0 || loopbackIsWide) {
				t.Errorf("20 connections had %d client addresses", len(seen))
			}
		})
	}
	f("v1", 1, false, "10.0.0.0/8")
	f("v2", 2, false, "10.0.0.0/8", "2001:db8::/32")
	f("v1 over TLS", 1, true, "2001:db8::/32")
	f("v2 over TLS", 2, true, "198.18.0.0/15")
	f("none", 0, false)
}

// TestFaults: the bytes that the other side receives from a connection that is cut, and
// the outcome that is counted.
func TestFaults(t *testing.T) {
	var asWanted atomic.Int32 // connections on which the other side received the right bytes
	f := func(name, want string, take func(net.Conn), change func(*Options)) {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			asWanted.Store(0)
			r := soak(t, serve(t, take), change, outcomes(faulty, want, 3))
			wantKinds(t, r)
			if r.Outcomes["faults"][want] < 3 || asWanted.Load() < 3 {
				t.Errorf("outcomes: %v, want %s; the other side was content with %d", r.Outcomes, want, asWanted.Load())
			}
		})
	}
	// Connections that were still open at the end of the run may have sent fewer bytes.
	gets := func(n int, then string) func(net.Conn) {
		return func(c net.Conn) {
			if got, _ := io.ReadAll(c); len(got) == n {
				asWanted.Add(1)
				io.WriteString(c, then)
			} else if len(got) > n {
				t.Errorf("%d bytes came, want %d and an end", len(got), n)
			}
		}
	}
	cut := func(texts ...string) func(*Options) {
		return func(o *Options) {
			o.Header, o.TLS, o.Body = 2, false, 100
			for _, s := range texts {
				one, err := ParseCut(s)
				if err != nil {
					t.Fatal(err)
				}
				o.Faults = append(o.Faults, one)
				o.TLS = o.TLS || one.Part == Hello
			}
		}
	}
	f("a header that is cut", closed, gets(8, ""), cut("header+8"))
	f("no header at all", closed, gets(0, ""), cut("header"))
	f("a ClientHello that is cut", closed, gets(28+5, ""), cut("hello+5"))
	f("a ClientHello that is cut, with an alert", closed, gets(28+5, "\x15\x03\x03\x00\x02\x02\x32"), cut("hello+5"))
	f("a head that is cut", answered, gets(28+4, "HTTP/1.1 400 Bad Request\r\n\r\n"), cut("head+4"))
	f("the first of two cuts", closed, gets(28, ""), cut("head+4", "header+100%"))
	f("a reset", weReset, func(c net.Conn) {
		if _, err := io.ReadAll(c); errors.Is(err, syscall.ECONNRESET) {
			asWanted.Add(1)
		}
	}, cut("body+50%=reset"))
	f("a delay that the other side does not bear", closed, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 8)); err == nil {
			asWanted.Add(1)
		}
	}, func(o *Options) {
		o.Header, o.Faults = 2, []Fault{{Part: Header, Offset: 8, Delay: patience}}
	})
	f("a delay that it bears", served, behindHeader(t, func(c net.Conn, _ *header.Header) {
		asWanted.Add(1)
		always(ok)(c)
	}), func(o *Options) {
		o.Header, o.Faults = 1, []Fault{{Part: Header, Offset: 8, Delay: 20 * time.Millisecond}, {Part: Head, Delay: 20 * time.Millisecond}}
	})
	f("a delay in the ClientHello that it bears", served, overTLS(func(c net.Conn) {
		asWanted.Add(1)
		always(ok)(c)
	}), func(o *Options) {
		o.TLS, o.Faults = true, []Fault{{Part: Hello, Offset: 50, Percent: true, Delay: 20 * time.Millisecond}}
	})
}

// TestSilence: a connection that sends nothing more is held until the run ends or the
// other side closes it.
func TestSilence(t *testing.T) {
	noLeaks(t)
	silent := func(o *Options) { o.Faults = []Fault{{Part: Head, Offset: 4, Cut: CutSilent}} }
	r := soak(t, serve(t, func(c net.Conn) { io.ReadFull(c, make([]byte, 4)) }), silent, outcomes(faulty, closed, 3))
	wantKinds(t, r)
	r = soak(t, serve(t, func(c net.Conn) { io.Copy(io.Discard, c) }), silent, func(s *Snapshot) bool { return s.Open == 3 })
	wantKinds(t, r)
	if r.Outcomes["faults"][waiting] != 3 {
		t.Errorf("outcomes: %v", r.Outcomes)
	}
}

// TestLateHeader is the incident that this tool is for: the PROXY header comes late, and
// the other side answers in plain text on a TLS port.
func TestLateHeader(t *testing.T) {
	noLeaks(t)
	r := soak(t, serve(t, func(c net.Conn) {
		c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		c.Read(make([]byte, 1)) // the header is late for this side, which then reads it as a request
		c.SetReadDeadline(time.Time{})
		c.Read(make([]byte, 100))
		io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n400 Bad Request")
	}), func(o *Options) {
		o.TLS, o.Header, o.Faults = true, 2, []Fault{{Part: Header, Delay: 100 * time.Millisecond}}
	}, anomalies(3))
	wantKinds(t, r, PlaintextOnTLS)
}

// TestExpect: the user can require an outcome of connections with faults.
func TestExpect(t *testing.T) {
	noLeaks(t)
	f := func(expect string, handle func(net.Conn), enough func(*Snapshot) bool, want ...Kind) {
		t.Helper()
		wantKinds(t, soak(t, serve(t, handle), func(o *Options) {
			o.Expect, o.Faults = expect, []Fault{{Part: Head, Offset: 3, Delay: 10 * time.Millisecond}}
		}, enough), want...)
	}
	hangsUp := func(c net.Conn) { io.ReadFull(c, make([]byte, 3)) }
	f(ExpectServed, hangsUp, outcomes(faulty, closed, 3), UnexpectedOutcome)
	f(ExpectClosed, hangsUp, outcomes(faulty, closed, 3))
	f(ExpectServed, always(ok), outcomes(faulty, served, 3))
	f(ExpectClosed, always(ok), outcomes(faulty, served, 3), UnexpectedOutcome)
	late := always("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
	f(ExpectClosed, late, outcomes(faulty, answered, 3), UnexpectedOutcome)
	f(ExpectUnserved, late, outcomes(faulty, answered, 3))
	f(ExpectUnserved, hangsUp, outcomes(faulty, closed, 3))
	f(ExpectUnserved, always(ok), outcomes(faulty, served, 3), UnexpectedOutcome)
}

// TestAfterFaults: a connection that was served in spite of its faults is an ordinary
// connection afterwards.
func TestAfterFaults(t *testing.T) {
	noLeaks(t)
	once := answering(func(n int, _ *http.Request) string { return []string{ok, ""}[min(n, 1)] })
	r := soak(t, serve(t, once), func(o *Options) {
		o.Every, o.Faults = time.Millisecond, []Fault{{Part: Head, Delay: time.Millisecond}}
	}, anomalies(3))
	wantKinds(t, r, Closed)
}

// TestPatienceEnds: with churn, connections that wait on purpose end too, and others
// replace them.
func TestPatienceEnds(t *testing.T) {
	noLeaks(t)
	hangs := func(c net.Conn) { io.Copy(io.Discard, c) }
	f := func(r role, change func(*Options)) {
		t.Helper()
		report := soak(t, serve(t, hangs), func(o *Options) {
			o.Churn = 10 * time.Millisecond
			change(o)
		}, outcomes(r, waiting, 9))
		wantKinds(t, report)
		if report.Outcomes[string(r)][waiting] < 9 {
			t.Errorf("outcomes: %v", report.Outcomes)
		}
	}
	f(openBody, func(o *Options) { o.OpenBodies = 1 })
	f(slowReader, func(o *Options) { o.SlowReaders = 1 })
	f(faulty, func(o *Options) { o.Faults = []Fault{{Part: Head, Offset: 5, Cut: CutSilent}} })
}

// TestShares: each role has its share of the connections, and the others are ordinary.
func TestShares(t *testing.T) {
	noLeaks(t)
	r := soak(t, serve(t, always(ok)), func(o *Options) {
		o.Connections, o.OpenBodies, o.SlowReaders, o.Faulty = 100, 0.1, 0.2, 0.3
		o.Faults = []Fault{{Part: Head, Delay: time.Millisecond}}
	}, func(s *Snapshot) bool { return s.Exchanges >= 80 && s.Open == 100 })
	wantKinds(t, r)
	f := func(role string, want int64) {
		t.Helper()
		var n int64
		for _, o := range r.Outcomes[role] {
			n += o
		}
		if n < want-3 || n > want+3 {
			t.Errorf("%d of 100 connections are %s: %v", n, role, r.Outcomes)
		}
	}
	f("open_bodies", 10)
	f("slow_readers", 20)
	f("faults", 30)
	if n := r.Outcomes["open_bodies"][waiting]; n < 7 {
		t.Errorf("%d bodies were waited for", n)
	}
}

// TestSlowReader: a slow reader does not read faster than it should, however much the
// other side sends.
func TestSlowReader(t *testing.T) {
	noLeaks(t)
	big := "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat("x", 10_000_000)
	r := soak(t, serve(t, always(big)), func(o *Options) { o.Connections, o.SlowReaders = 1, 1 },
		func(s *Snapshot) bool { return s.Received > 0 })
	wantKinds(t, r)
	if r.Outcomes["slow_readers"][waiting] != 1 || r.Received > 10*slowRate {
		t.Errorf("%v, %d bytes were read", r.Outcomes, r.Received)
	}
}

func TestChurn(t *testing.T) {
	noLeaks(t)
	r := soak(t, serve(t, overTLS(always(ok))), func(o *Options) { o.TLS, o.Churn = true, 10*time.Millisecond },
		func(s *Snapshot) bool { return s.Opened >= 30 })
	wantKinds(t, r)
	if r.Opened < 30 || r.Peak > 3 || r.EndedIdle > 0 {
		t.Errorf("%d were opened, %d at once, %d ended by the other side", r.Opened, r.Peak, r.EndedIdle)
	}
}

// TestBounds: a run ends by itself, and opens no more connections than its rate allows.
func TestBounds(t *testing.T) {
	noLeaks(t)
	r := soak(t, serve(t, always(ok)), func(o *Options) {
		o.Connections, o.ConnectRate, o.Duration = 1000, 20, 500*time.Millisecond
	}, func(*Snapshot) bool { return false })
	wantKinds(t, r)
	if r.Interrupted || r.Opened > 20 || r.Opened < 1 {
		t.Errorf("%d were opened, interrupted: %v", r.Opened, r.Interrupted)
	}
}

// TestWorkers: several processes do the same as one. Their clients have different
// addresses, and their results are added up.
func TestWorkers(t *testing.T) {
	noLeaks(t)
	var lock sync.Mutex
	seen := map[netip.Addr]int{}
	address := serve(t, behindHeader(t, func(c net.Conn, h *header.Header) {
		lock.Lock()
		seen[h.Source.Addr()]++
		lock.Unlock()
		always("HTTP/1.1 418 I'm a teapot\r\nContent-Length: 0\r\n\r\n")(c)
	}))
	r := soak(t, address, func(o *Options) {
		o.Processes, o.Connections, o.Header, o.Faulty = 3, 31, 2, 0.5
		o.Faults = []Fault{{Part: Header, Offset: 5, Delay: time.Millisecond}}
		o.Status = []string{"418"}
	}, exchanges(31))
	wantKinds(t, r)
	if r.Processes != 3 || r.Requests != 31 || r.Peak != 31 || len(seen) != 31 || r.Statuses[418] != 31 || r.Outcomes["faults"][served] < 14 {
		t.Errorf("%d clients, and the report is %+v", len(seen), r)
	}
	r = soak(t, address, func(o *Options) { o.Processes, o.Connections, o.Header = 2, 4, 2 }, anomalies(4))
	wantKinds(t, r, UnexpectedStatus)
}

func TestProcessesFor(t *testing.T) {
	f := func(connections, descriptors, want int) {
		t.Helper()
		if got := processesFor(connections, descriptors); got != want {
			t.Errorf("%d connections with %d descriptors take %d processes, want %d", connections, descriptors, got, want)
		}
	}
	f(1000, 1024, 2)
	f(1000, 20000, 1)
	f(30000, 20000, 2)
	f(19936, 20000, 1)
	f(19937, 20000, 2)
	f(5, 10, 5)
}

// Many processes need descriptors of the process that starts them. The error message
// tells the user what to do.
func TestProcessError(t *testing.T) {
	f := func(err error, want string) {
		t.Helper()
		if got := processError(7, 75, err).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(io.ErrUnexpectedEOF, "process 8 of 75: unexpected EOF")
	f(fmt.Errorf("cannot start it: %w", os.NewSyscallError("pipe2", syscall.EMFILE)), "process 8 of 75: cannot start it: pipe2: "+
		"too many open files: raise the limit of open files (ulimit -n), or hold fewer connections (--connections)")
}

func TestPrepare(t *testing.T) {
	f := func(want string, change func(*Options)) {
		t.Helper()
		o := Defaults()
		o.Targets = []string{"127.0.0.1:80"}
		change(&o)
		if err := o.Prepare(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	raw := func(more func(*Options)) func(*Options) {
		return func(o *Options) {
			o.Targets = []string{"tcp://127.0.0.1:80"}
			more(o)
		}
	}
	f("name a target", func(o *Options) { o.Targets = nil })
	f("--connections is 0", func(o *Options) { o.Connections = 0 })
	f("each of the 2 targets", func(o *Options) { o.Targets, o.Connections = []string{"127.0.0.1:80", "127.0.0.1:81"}, 1 })
	f("--connect-rate", func(o *Options) { o.ConnectRate = 0 })
	f("--rate", func(o *Options) { o.Rate = -1 })
	f("--rate", func(o *Options) { o.Rate, o.ConnectRate = 2*maxRate, 2*maxRate })
	f("make no request", func(o *Options) { o.Rate, o.Duration = 0.5, time.Second })
	f("--duration", func(o *Options) { o.Duration = 0 })
	f("--timeout", func(o *Options) { o.Timeout = -1 })
	f("--churn", func(o *Options) { o.Churn = -1 })
	f("--interval is too short", func(o *Options) { o.Interval = time.Microsecond })
	f("--processes", func(o *Options) { o.Processes = 10_000 })
	f("--protocol", func(o *Options) { o.Protocol = "http3" })
	f("--protocol raw", func(o *Options) { o.Reply = "x" })
	f("--protocol raw", raw(func(o *Options) { o.Body = 1 }))
	f("--rate needs --send", raw(func(o *Options) { o.Rate = 1 }))
	f("an empty message", func(o *Options) { o.Protocol, o.Body = GRPC, 1 })
	f("--message echo", func(o *Options) { o.Protocol, o.Body = WebSocket, 126 })
	f("--message is", func(o *Options) { o.Message = "pong" })
	f("--open-bodies", func(o *Options) { o.Protocol, o.OpenBodies = WebSocket, 0.5 })
	f("--body", func(o *Options) { o.Body = -1 })
	f("--path", func(o *Options) { o.Path = "x" })
	f("--path", func(o *Options) { o.Path = "/a b" })
	f("--host", func(o *Options) { o.Host = "a/b" })
	f("--header", func(o *Options) { o.Fields = []string{"no colon"} })
	f("--header", func(o *Options) { o.Fields = []string{"a: b\r\nc: d"} })
	f("use --host", func(o *Options) { o.Fields = []string{"host: example.org"} })
	f("use --body", func(o *Options) { o.Fields = []string{"Content-Length: 5"} })
	f("--reply", raw(func(o *Options) { o.Reply = "(" }))
	f("--status", func(o *Options) { o.Status = []string{"ok"} })
	f("one group", func(o *Options) { o.AddressPattern = "x" })
	f("--address-header", raw(func(o *Options) { o.AddressField = "x" }))
	f("use --address-header", func(o *Options) { o.Protocol, o.AddressPattern = WebSocket, "(x)" })
	f("--cert, --key and --ca need TLS", func(o *Options) { o.CA = SystemCA })
	f("--key needs --cert", func(o *Options) { o.TLS, o.Key = true, "key.pem" })
	f("--cert and --key: open /nowhere", func(o *Options) { o.TLS, o.Cert = true, "/nowhere" })
	f("--ca: open /nowhere", func(o *Options) { o.TLS, o.CA = true, "/nowhere" })
	f("has no certificate", func(o *Options) { o.TLS, o.CA = true, "/dev/null" })
	f("--proxy-header", func(o *Options) { o.Faults = []Fault{{Part: Header}} })
	f("--tls", func(o *Options) { o.Faults = []Fault{{Part: Hello}} })
	f("--send", raw(func(o *Options) { o.Faults = []Fault{{Part: Head}} }))
	f("--body", func(o *Options) { o.Faults = []Fault{{Part: Body}} })
	f("have no request body", func(o *Options) { o.Protocol, o.Faults = WebSocket, []Fault{{Part: Body}} })
	f("--share", func(o *Options) { o.OpenBodies, o.SlowReaders = 0.6, 0.6 })
	f("--share", func(o *Options) { o.OpenBodies, o.Faulty, o.Faults = 0.6, 0.6, []Fault{{Part: Head}} })
	f("--expect", func(o *Options) { o.Expect = "luck" })
	for _, expect := range []string{ExpectServed, ExpectUnserved, ExpectClosed} {
		f("--expect "+expect+" is for connections with faults, and no connection has one: add --delay, --cut, --open-bodies or --slow-readers",
			func(o *Options) { o.Expect = expect })
	}
	f("no connection has one", func(o *Options) { o.Expect, o.Faults, o.Faulty = ExpectClosed, []Fault{{Part: Head}}, 0 })
	for _, faults := range []func(*Options){
		func(o *Options) { o.Faults = []Fault{{Part: Head}} },
		func(o *Options) { o.OpenBodies, o.Body = 0.1, 10 },
		func(o *Options) { o.SlowReaders = 0.1 },
	} {
		o := Defaults()
		o.Targets, o.Expect = []string{"127.0.0.1:80"}, ExpectUnserved
		faults(&o)
		if err := o.Prepare(); err != nil {
			t.Errorf("--expect beside faults: %v", err)
		}
	}
	f("--clients", func(o *Options) { o.Header, o.Clients = 1, nil })
	for kind := range kinds {
		if !slices.Contains([]Kind{PlaintextOnTLS, WrongAddress, Refused, Timeout, Malformed, Local, UnexpectedReply, UnexpectedOutcome, MissingTrailers, Unsent}, kind) &&
			!slices.Contains(slices.Concat(tolerated[faulty], tolerated[openBody]), kind) {
			t.Errorf("no list of this test says whether a fault may cause %s", kind)
		}
	}
}
