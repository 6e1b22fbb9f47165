package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener"
	"github.com/weirproxy/weir/listener/conn"
)

// errEnds is the error of an undrain after SIGTERM, or after an upgrade.
var errEnds = errors.New("this process ends, so its drain cannot be taken back; start weir again after it has ended")

// setDraining begins or ends a drain: the health port answers 503, and responses have
// Connection: close. All requests are still served. The drain of a process that ends cannot be
// taken back: then setDraining returns errEnds.
func (s *server) setDraining(on bool) error {
	s.drains.Lock() // otherwise an undrain at the time of SIGTERM could make the health port answer 200
	defer s.drains.Unlock()
	if !on && s.tracker.Draining() {
		return errEnds
	}
	if s.node.SetDraining(on); on {
		s.tracker.WatchArrivals()
	} else if arrived := s.tracker.Arrivals(); !arrived.Since.IsZero() {
		s.tracker.EndArrivals()
		s.log.Info("the drain was taken back", s.aboutArrivals(arrived)...)
	}
	s.proxy.SetDraining(on)
	return nil
}

// setCordoned begins or ends a cordon: the health port answers 503.
func (s *server) setCordoned(on bool) error {
	s.node.SetCordoned(on)
	return nil
}

// aboutArrivals returns the fields of a log line about a drain: how many connections arrived, who opened
// the last one, and which load balancers have not noticed the drain.
func (s *server) aboutArrivals(a listener.Arrivals) []zap.Field {
	fields := []zap.Field{zap.Int("new_connections", a.New), zap.Duration("last_new_connection", a.Last)}
	if a.From.IsValid() {
		fields = append(fields, zap.String("last_new_connection_from", shownAddr(a.From)))
	}
	fields = append(fields, zap.Duration("after", time.Since(a.Since)))
	if untold := s.untoldLoadBalancers(); len(untold) > 0 {
		fields = append(fields, zap.Strings("load_balancers_not_told", untold))
	}
	return fields
}

// untoldShown limits the addresses of load balancers in the log and the status.
const untoldShown = 16

// untoldLoadBalancers returns the load balancers that have not seen two answers 503.
func (s *server) untoldLoadBalancers() (all []string) {
	for _, a := range s.health.UntoldLoadBalancers() {
		if len(all) == untoldShown {
			break
		}
		all = append(all, shownAddr(a))
	}
	return all
}

// shownAddr returns the address in the form of the log; empty: there is none.
func shownAddr(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.Unmap().String()
}

// errCut is the error of shutdown if weir aborted a request or tunnel.
var errCut = errors.New("active requests or tunnels aborted at the end of drain.timeout")

// errCutNow is the error if that happened earlier: because of a second signal, or of the note end.
var errCutNow = errors.New("active requests or tunnels aborted before the end of drain.timeout")

// shutdown drains and then stops weir. The health port answers 503 at once; weir still
// serves for lame_duck. Then all sockets close, so that another process can bind them, and
// open requests and tunnels may run until timeout. The last writes to a cluster begin at once,
// and may also run until timeout. now ends all waits.
func (s *server) shutdown(now <-chan struct{}) error {
	cfg := s.configInEffect()
	s.tracker.SetDraining()
	s.setDraining(true)
	s.endWaits()
	cluster := s.current()
	if cluster != nil {
		cluster.giveUp()
	}
	s.tellDrain("draining", zap.Duration("lame_duck", cfg.Drain.LameDuck), zap.Duration("timeout", cfg.Drain.Timeout))
	because := s.lameDuck(cfg.Drain, now)
	arrived := s.tracker.Arrivals()
	s.log.Info("no new connections are accepted any more", append([]zap.Field{zap.String("because", because)}, s.aboutArrivals(arrived)...)...)
	s.change.Lock()
	s.ended = true
	s.change.Unlock()
	s.closeSockets()
	s.log.Info("all ports are closed, and another process can bind them")
	return s.finish(cfg.Drain, cluster, now, s.generations.await)
}

// finish waits for the remaining connections until the end of drain.timeout, and stops weir. more,
// if not nil, is another wait for the same time. now ends all waits.
func (s *server) finish(d config.Drain, cluster *cluster, now <-chan struct{}, more func(context.Context)) error {
	ctx, cancel := context.WithTimeout(context.Background(), d.Timeout)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-now:
			cancel()
			if cluster != nil {
				cluster.stopLeaving(errSecondSignal)
			}
		case <-over:
		}
	}()
	select {
	case <-now:
		cancel()
	default:
		go s.tellRemaining(ctx, d.Timeout)
	}
	cut := s.tracker.Drain(ctx)
	if more != nil {
		more(ctx)
	}
	s.awaitAnswers(ctx)
	err := errCut
	if ctx.Err() == context.Canceled {
		err = errCutNow
	}
	ends, _ := ctx.Deadline()
	cancel()
	s.closeBy(ends)
	if cut > 0 {
		return fmt.Errorf("%d %w", cut, err)
	}
	return nil
}

// The reasons why the lame-duck phase ended.
const (
	lameDuckOver  = "drain.lame_duck is over"
	lameDuckQuiet = "no connection arrived for drain.until_quiet"
	lameDuckCut   = "a second signal"
	lameDuckAlone = "nobody has asked the health port for a minute"
)

// unasked is the time without a request to the health port after which weir waits for no load balancer.
const unasked = time.Minute

// quietLook is how often weir looks whether load balancers have become quiet.
const quietLook = 100 * time.Millisecond

// lameDuck waits until load balancers have had enough time to notice the drain, and returns why
// the wait has ended. It ends early when load balancers have become quiet, if the configuration
// says so.
func (s *server) lameDuck(d config.Drain, now <-chan struct{}) (because string) {
	if d.IfAsked && !s.health.AskedWithin(unasked) {
		return lameDuckAlone
	}
	over := time.After(d.LameDuck)
	var look <-chan time.Time // nil: never
	if d.UntilQuiet > 0 {
		tick := time.NewTicker(quietLook)
		defer tick.Stop()
		look = tick.C
	}
	for {
		select {
		case <-over:
			return lameDuckOver
		case <-now:
			return lameDuckCut
		case <-look:
			if s.tracker.Arrivals().Quiet() >= d.UntilQuiet && len(s.health.UntoldLoadBalancers()) == 0 {
				return lameDuckQuiet
			}
		}
	}
}

// closeSockets closes the listeners and the health, metrics and admin ports at the same
// time: a process that takes over needs all of them. It also waits for the sockets of plans,
// and of removed listeners. No plan may take effect any more.
func (s *server) closeSockets() {
	var closing sync.WaitGroup
	closing.Go(s.plans.Wait)
	closing.Go(s.awaitClosing)
	for _, l := range s.listeners {
		closing.Go(func() { l.Close() })
	}
	closing.Go(s.closePorts)
	closing.Wait()
}

// remainingEvery is how often the log reports which connections a drain waits for. The
// metrics port is closed by then, so only the log can report it.
const remainingEvery = 10 * time.Second

// tellRemaining logs which connections a drain waits for, until ctx ends.
func (s *server) tellRemaining(ctx context.Context, timeout time.Duration) {
	tick := time.NewTicker(max(remainingEvery, timeout/20))
	defer tick.Stop()
	for s.tracker.Open() > 0 || len(s.generations.list()) > 0 {
		s.tellDrain("waiting for open connections to close")
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tellDrain logs how many connections are open, which old processes of upgrades still run, and on a terminal how to
// stop at once.
func (s *server) tellDrain(line string, fields ...zap.Field) {
	exchanges, tunnels := s.active()
	if s.terminal {
		line += "; press Ctrl-C again to end weir at once"
	}
	if old := s.generations.list(); len(old) > 0 {
		fields = append(fields, zap.Strings("old_processes", named(old)))
	}
	s.log.Info(line, append(fields, zap.Int("connections", s.tracker.Open()), zap.Int("running_exchanges", exchanges), zap.Int("tunnels", tunnels), zap.Int("pid", os.Getpid()))...)
}

// active counts the connections with a running exchange, and the tunnels.
func (s *server) active() (exchanges, tunnels int) {
	s.tracker.Each(func(c *conn.Conn) {
		switch c.State() {
		case conn.Active:
			exchanges++
		case conn.Tunnel:
			tunnels++
		}
	})
	return exchanges, tunnels
}
