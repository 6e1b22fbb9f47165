package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// A kind is a connection whose memory is measured while it is idle.
type kind struct {
	key, name string
	// dial makes one.
	dial func(s setup) (net.Conn, error)
	// use is what it does before it goes quiet.
	use func(c net.Conn) error
}

var kinds = []kind{
	{"tunnel", "idle tunnel, both halves", dialRaw, useOnceOrSo},
	{"used", "idle tunnel after 100 exchanges and 256 KiB", dialRaw, useMuch},
	{"ws", "idle WebSocket", dialWebSocket, useOnceOrSo},
	{"wss", "idle WebSocket over TLS", dialSecure, useOnceOrSo},
	{"wss-used", "the same after 100 exchanges and 256 KiB", dialSecure, useMuch},
}

func useOnceOrSo(c net.Conn) error { return exchange(c, 1, 128) }

func useMuch(c net.Conn) error {
	return errors.Join(exchange(c, 100, 128), exchange(c, 4, 64<<10))
}

func dialRaw(s setup) (net.Conn, error) {
	return net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.TCPPort))
}

func dialWebSocket(s setup) (net.Conn, error) {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.HTTPPort))
	if err != nil {
		return nil, err
	}
	return c, upgraded(c)
}

func dialSecure(s setup) (net.Conn, error) {
	config := shake{}.client()
	config.NextProtos = []string{"http/1.1"}
	c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.TLSPort), config)
	if err != nil {
		return nil, err
	}
	return c, upgraded(c)
}

// upgraded makes a connection a tunnel by way of HTTP.
func upgraded(c net.Conn) error {
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"); err != nil {
		return err
	}
	head, err := readHead(c)
	if err == nil && !strings.HasPrefix(head, "HTTP/1.1 101 ") {
		err = fmt.Errorf("the proxy answers an upgrade with %q", head)
	}
	return err
}

// readHead reads the head of a message and not a byte more.
func readHead(c net.Conn) (string, error) {
	var head []byte
	for b := make([]byte, 1); !strings.HasSuffix(string(head), "\r\n\r\n"); head = append(head, b[0]) {
		if _, err := io.ReadFull(c, b); err != nil {
			return string(head), err
		}
	}
	return string(head), nil
}

// exchange sends so many messages that come back, one after the other.
func exchange(c net.Conn, times, size int) error {
	c.SetDeadline(time.Now().Add(30 * time.Second))
	out, in := make([]byte, size), make([]byte, size)
	for range times {
		if _, err := c.Write(out); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, in); err != nil {
			return err
		}
	}
	return nil
}

// memoryMain measures resident memory per idle connection: the slope between
// two numbers of connections, so that what a process needs anyway does not count.
func memoryMain(args []string) error {
	flags := flag.NewFlagSet("memory", flag.ExitOnError)
	var o options
	peers := flags.String("peers", "weir,haproxy", "proxies to measure")
	which := flags.String("kinds", "tunnel,used", "kinds of connections: tunnel, used, ws, wss, wss-used")
	from := flags.Int("from", 1000, "connections at the first look")
	to := flags.Int("to", 9000, "connections at the second")
	rate := flags.Int("rate", 1000, "new connections a second")
	rounds := flags.Int("rounds", 1, "rounds")
	flags.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flags.Parse(args)
	o.peers = strings.Split(*peers, ",")
	if err := o.build(); err != nil {
		return err
	}
	defer o.cleanUp()
	if done, err := runApart(append(os.Args[1:], "-weir", o.weir)); done || err != nil {
		return err
	}
	for _, k := range kinds {
		if !strings.Contains(","+*which+",", ","+k.key+",") {
			continue
		}
		for range *rounds {
			for _, peer := range o.peers {
				kib, err := o.slope(k, peer, *from, *to, *rate)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", k.name, peer, err)
				}
				fmt.Printf("%-45s %-8s %6.2f KiB per connection\n", k.name, peer, kib)
			}
		}
	}
	return nil
}

// slope starts a proxy and measures one kind of connection.
func (o *options) slope(k kind, peer string, from, to, rate int) (kib float64, err error) {
	p, s, err := o.startAlone(peer, to)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(s.Dir)
	defer p.stop()
	stop, err := serveEcho(s.BackendPort)
	if err != nil {
		return 0, err
	}
	defer stop()
	if err := p.ready(s.TCPPort); err != nil {
		return 0, err
	}
	var open []net.Conn
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	var resident [2]float64
	for i, n := range [...]int{from, to} {
		if open, err = k.openUntil(n, rate, s, open); err != nil {
			return 0, fmt.Errorf("with %d connections: %w; %s", len(open), err, p.output())
		}
		if resident[i], err = settled(p.cmd.Process.Pid); err != nil {
			return 0, err
		}
	}
	for _, c := range open { // all have to be there still
		if err := exchange(c, 1, 1); err != nil {
			return 0, fmt.Errorf("an idle connection did not last: %w", err)
		}
	}
	return (resident[1] - resident[0]) / float64(to-from), nil
}

// startAlone starts a proxy whose backend is ours.
func (o *options) startAlone(peer string, connections int) (*process, setup, error) {
	ports, err := freePorts(7)
	if err != nil {
		return nil, setup{}, err
	}
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return nil, setup{}, err
	}
	b := &bench{options: *o, setup: setup{Dir: dir, AllFields: true, Connections: connections + 100,
		HTTPPort: ports[0], TLSPort: ports[1], TCPPort: ports[2], AdminPort: ports[3], BackendPort: ports[4],
		UploadPort: ports[5], CallPort: ports[6]}}
	err = errors.Join(os.Chmod(dir, 0o755), writeCertificates(dir))
	if err == nil {
		var p *process
		if p, err = b.startProxy(row{}, peer); err == nil {
			return p, b.setup, nil
		}
	}
	os.RemoveAll(dir)
	return nil, setup{}, err
}

// serveEcho is a backend that returns what it gets, after an upgrade where one is asked for.
func serveEcho(port int) (stop func(), err error) {
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				first := make([]byte, 4)
				if _, err := io.ReadFull(c, first); err != nil {
					return
				}
				if string(first) == "GET " {
					if _, err := readHead(c); err != nil {
						return
					}
					first = []byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
				}
				c.Write(first)
				io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 4<<10))
			}()
		}
	}()
	return func() { l.Close() }, nil
}

// openers is how many connections are opened, and used, at the same time.
const openers = 16

// openUntil opens connections until there are n. Each does what its kind does.
func (k kind) openUntil(n, rate int, s setup, open []net.Conn) ([]net.Conn, error) {
	turns, missing := make(chan struct{}), n-len(open)
	go func() {
		defer close(turns)
		begun := time.Now()
		for i := range missing {
			time.Sleep(time.Duration(i)*time.Second/time.Duration(rate) - time.Since(begun))
			turns <- struct{}{}
		}
	}()
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed error
	for range openers {
		all.Go(func() {
			for range turns {
				c, err := k.dial(s)
				if err == nil {
					err = k.use(c)
				}
				mu.Lock()
				if err == nil {
					open = append(open, c)
				} else if failed == nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return open, failed
}

// settled is a process's resident memory in KiB once that does not change any more.
func settled(pid int) (float64, error) {
	last := math.Inf(1)
	for begun := time.Now(); ; {
		time.Sleep(4 * time.Second)
		kib, err := resident(pid)
		now := float64(kib)
		if err != nil || math.Abs(now-last) < last/500 || time.Since(begun) > time.Minute {
			return now, err
		}
		last = now
	}
}
