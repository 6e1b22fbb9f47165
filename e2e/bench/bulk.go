package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

// bulkMain measures how many bytes a tunnel moves in a second of the proxy's CPU time.
func bulkMain(args []string) error {
	flags := flag.NewFlagSet("bulk", flag.ExitOnError)
	var o options
	peers := flags.String("peers", "weir,haproxy", "proxies to measure")
	rounds := flags.Int("rounds", 5, "rounds for each proxy")
	connections := flags.Int("connections", 8, "tunnels at once")
	flags.DurationVar(&o.duration, "duration", 3*time.Second, "measured part of a round")
	flags.DurationVar(&o.warmup, "warmup", time.Second, "load before it")
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
	figures := map[string][]float64{}
	for n := range *rounds {
		for i := range o.peers {
			peer := o.peers[(i+n)%len(o.peers)]
			figure, err := o.bulkRound(peer, *connections)
			if err != nil {
				return fmt.Errorf("bulk, round %d of %s: %w", n+1, peer, err)
			}
			fmt.Fprintf(os.Stderr, "bulk %2d/%d  %-8s %7.2f GB per CPU second\n", n+1, *rounds, peer, figure/1e9)
			figures[peer] = append(figures[peer], figure)
		}
	}
	for _, peer := range o.peers {
		s := spreadOf(figures[peer])
		fmt.Printf("bulk tunnel, %d connections: %-8s %.2f GB per CPU second (%.2f to %.2f)\n", *connections, peer, s.Median/1e9, s.Min/1e9, s.Max/1e9)
	}
	return nil
}

func (o *options) bulkRound(peer string, connections int) (float64, error) {
	p, s, err := o.startAlone(peer, connections, false, freeport.Benchmark)
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(s.Dir)
	defer p.stop()
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	if err := p.ready(s.TCPPort); err != nil {
		return 0, err
	}
	load, err := start(loadCore, filepath.Join(s.Dir, "load.out"), nil, self, "stream", "-listen", fmt.Sprintf("127.0.0.1:%d", s.BackendPort),
		"-address", fmt.Sprintf("127.0.0.1:%d", s.TCPPort), "-connections", fmt.Sprint(connections),
		"-warmup", o.warmup.String(), "-for", o.duration.String(), "-pid", fmt.Sprint(p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer load.stop()
	select {
	case <-load.done:
	case <-time.After(o.warmup + o.duration + 30*time.Second):
		return 0, errors.New("the load generator does not end")
	}
	var r streamed
	if err := json.Unmarshal([]byte(load.output()), &r); err != nil || r.CPU == 0 || r.Bytes == 0 {
		return 0, fmt.Errorf("the load did not go through: %s", load.output())
	}
	return float64(r.Bytes) / r.CPU.Seconds(), nil
}

// streamed is the result of the load generator.
type streamed struct {
	Bytes int64
	CPU   time.Duration
}

// streamMain is both ends of the tunnels. It sends without end on the connections that it
// accepts, and reads on the connections that it opens. It reads the proxy's CPU time
// itself, because only it knows how many bytes had arrived at which time.
func streamMain(args []string) error {
	flags := flag.NewFlagSet("stream", flag.ExitOnError)
	listen := flags.String("listen", "", "where the proxy connects to")
	address := flags.String("address", "", "the proxy")
	connections := flags.Int("connections", 1, "how many")
	warmup := flags.Duration("warmup", time.Second, "how long before it counts")
	d := flags.Duration("for", time.Second, "how long it counts")
	pid := flags.Int("pid", 0, "the proxy's process")
	flags.Parse(args)
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	go sendTo(l)
	var bytes atomic.Int64
	var all sync.WaitGroup
	var open []net.Conn
	for range *connections {
		c, err := net.Dial("tcp", *address)
		if err != nil {
			return err
		}
		open = append(open, c)
		all.Go(func() { receive(c, &bytes) })
	}
	time.Sleep(*warmup)
	cpu, err := cpuTime(*pid)
	if err != nil {
		return err
	}
	before := bytes.Load()
	time.Sleep(*d)
	after := bytes.Load()
	now, err := cpuTime(*pid)
	if err != nil {
		return err
	}
	for _, c := range open {
		c.Close()
	}
	all.Wait()
	return json.NewEncoder(os.Stdout).Encode(streamed{Bytes: after - before, CPU: now - cpu})
}

func sendTo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for buf := make([]byte, 256<<10); ; {
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		}()
	}
}

func receive(c net.Conn, count *atomic.Int64) {
	for buf := make([]byte, 256<<10); ; {
		n, err := c.Read(buf)
		count.Add(int64(n))
		if err != nil || n == 0 {
			if !errors.Is(err, net.ErrClosed) && err != io.EOF {
				fmt.Fprintln(os.Stderr, err)
			}
			return
		}
	}
}
