package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// idleRow is one that measures memory: what a connection of HTTP/2 takes that
// has had so many uploads, or one request, and waits.
func idleRow(key, name string, uploads int) row {
	path := pathSmall
	if uploads > 0 {
		path = pathUpload
	}
	return row{Key: key, Name: name, secure: true, path: path, idle: true, port: func(s setup) int { return s.TLSPort },
		load: func(s setup, r row, _ time.Duration) []string {
			self, err := os.Executable()
			if err != nil {
				self = os.Args[0]
			}
			return []string{self, "idle", "-address", fmt.Sprintf("127.0.0.1:%d", s.TLSPort), "-uploads", fmt.Sprint(uploads), "-connections", fmt.Sprint(s.IdleConnections)}
		}}
}

const idleReady = "all connections are idle"

// idleRound starts one proxy, has it serve the row's connections, and divides
// by their number what it takes of the machine's memory once they are idle.
func (b *bench) idleRound(r row, name string) (sample, error) {
	p, err := b.startProxy(r, name)
	if err != nil {
		return sample{}, err
	}
	defer p.stop()
	if err := p.ready(r.port(b.setup)); err != nil {
		return sample{}, err
	}
	if err := b.probeH2(r); err != nil {
		return sample{}, fmt.Errorf("%w: %s", err, p.output())
	}
	before, err := resident(p.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	load, err := start(loadCore, filepath.Join(b.setup.Dir, "load.out"), nil, r.load(b.setup, r, 0)...)
	if err != nil {
		return sample{}, err
	}
	defer load.stop()
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(load.output(), idleReady); time.Sleep(20 * time.Millisecond) {
		select {
		case <-load.done:
			return sample{}, fmt.Errorf("the connections were not served: %s", load.output())
		default:
		}
		if time.Now().After(deadline) {
			return sample{}, fmt.Errorf("the connections are not served in time: %s", load.output())
		}
	}
	time.Sleep(b.settle)
	after, err := resident(p.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	return sample{KiB: float64(after-before) / float64(b.setup.IdleConnections)}, nil
}

// resident is what pid and its children take of the machine's memory, in KiB.
// Pages that they share count for each; so they do in both looks.
func resident(pid int) (int, error) {
	sum := 0
	for _, p := range family(pid) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
		if err != nil {
			return 0, err
		}
		_, rest, found := strings.Cut(string(text), "VmRSS:")
		if fields := strings.Fields(rest); found && len(fields) > 0 {
			n, err := strconv.Atoi(fields[0])
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return sum, nil
}

// idleMain opens connections, uses each as the row says, says so, and keeps
// them open until it is ended.
func idleMain(args []string) int {
	flags := flag.NewFlagSet("idle", flag.ExitOnError)
	address := flags.String("address", "", "host:port")
	uploads := flags.Int("uploads", 0, "uploads on each connection; 0: one GET")
	n := flags.Int("connections", 1, "how many")
	flags.Parse(args)

	var all sync.WaitGroup
	failed := make(chan error, *n)
	turns := make(chan struct{}, 16) // so many are in use at once
	for range *n {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			if err := useOnce(*address, *uploads); err != nil {
				failed <- err
			}
		})
	}
	all.Wait()
	if len(failed) > 0 {
		fmt.Println(len(failed), "connections failed:", <-failed)
		return 1
	}
	fmt.Println(idleReady)
	select {}
}

// kept are the connections, for nobody to collect them.
var kept struct {
	sync.Mutex
	all []net.Conn
}

// useOnce makes a connection and uses it.
func useOnce(address string, uploads int) error {
	config := shake{}.client()
	config.NextProtos = []string{"h2"}
	raw, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err
	}
	kept.Lock()
	kept.all = append(kept.all, raw)
	kept.Unlock()
	raw.SetDeadline(time.Now().Add(time.Minute))
	c := tls.Client(raw, config)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	u := &user{out: bufio.NewWriterSize(c, 64<<10)}
	u.framer = http2.NewFramer(u.out, bufio.NewReaderSize(c, 16<<10))
	if err := u.framer.WriteSettings(); err != nil {
		return err
	}
	for i := range max(1, uploads) {
		if err := u.request(uint32(1+2*i), uploads > 0); err != nil {
			return fmt.Errorf("request %d: %w", i+1, err)
		}
	}
	return raw.SetDeadline(time.Time{})
}

// user is a client of one connection, with one request at a time.
type user struct {
	framer *http2.Framer
	out    *bufio.Writer
}

var upload = bytes.Repeat([]byte("weir"), uploadSize/4)

func (u *user) request(id uint32, up bool) error {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSize(0)
	method, path := "GET", pathSmall
	if up {
		method, path = "POST", pathUpload
	}
	for _, f := range [][2]string{{":method", method}, {":scheme", "https"}, {":authority", "localhost"}, {":path", path}, {"user-agent", "weir-bench"}, {"accept", "*/*"}} {
		enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	u.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: !up, EndHeaders: true})
	for body := upload; up && len(body) > 0; {
		piece := body[:min(8<<10, len(body))] // no proxy's window is smaller for a stream
		body = body[len(piece):]
		u.framer.WriteData(id, len(body) == 0, piece)
	}
	if err := u.out.Flush(); err != nil {
		return err
	}
	for {
		f, err := u.framer.ReadFrame()
		if err != nil {
			return err
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				u.framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				u.framer.WritePing(true, f.Data)
			}
		case *http2.DataFrame:
			if n := len(f.Data()); n > 0 {
				u.framer.WriteWindowUpdate(0, uint32(n))
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return fmt.Errorf("the proxy says %v", f)
		}
		if h := f.Header(); h.StreamID == id && h.Flags.Has(http2.FlagDataEndStream) && (h.Type == http2.FrameData || h.Type == http2.FrameHeaders) {
			return u.out.Flush()
		}
	}
}
