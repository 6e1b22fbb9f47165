package health

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// Target is one endpoint to be checked.
type Target interface {
	// Address is what the check connects to, ip:port or unix:/path.
	Address() string
	// Dial connects for one check, PROXY header and (for a check by HTTP or gRPC
	// where the endpoint speaks TLS) handshake included. For a check by HTTP the
	// connection is an Asker; for one by gRPC it is one if it speaks HTTP/2. The check
	// closes it.
	Dial(ctx context.Context, forHTTP bool) (net.Conn, error)
	// SetReady is told after each check whether the endpoint counts as ready,
	// and why the last check failed (empty when it did not).
	SetReady(ready bool, why string)
}

// Checker runs active checks, one goroutine each.
type Checker struct {
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex // orders Start and Close
	running sync.WaitGroup
}

// NewChecker makes a checker without checks.
func NewChecker() *Checker {
	c := &Checker{}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// Start checks t at once and then at the interval until stop is called, which
// does not wait. wasReady says that t is in use already: then settings.Fall
// failures in a row are needed to take it out, where else the first check
// alone decides at first.
func (c *Checker) Start(t Target, settings config.HealthCheck, wasReady bool) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithCancel(c.ctx)
	if ctx.Err() == nil {
		c.running.Go(func() { run(ctx, t, &settings, wasReady) })
	}
	return cancel
}

// Close ends all checks and waits for them, no longer than a check's timeout.
func (c *Checker) Close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.running.Wait()
}

func run(ctx context.Context, t Target, s *config.HealthCheck, wasReady bool) {
	streak := streak{ready: wasReady, judged: wasReady}
	// The second check falls anywhere within the interval, so that checks which
	// began together at a start or reload do not stay together.
	spread := time.Duration(rand.Float64() * float64(s.Interval))
	for {
		next := time.Now().Add(spread)
		err := try(ctx, t, s)
		if ctx.Err() != nil {
			return
		}
		// Out of descriptors, weir knows nothing of the endpoint; what it knew
		// holds, or every endpoint would seem to fail at once.
		if !conn.Exhausted(err) {
			why := ""
			if err != nil {
				why = err.Error()
			}
			t.SetReady(streak.add(err == nil, s.Rise, s.Fall), why)
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		spread = s.Interval + time.Duration((rand.Float64()-0.5)*0.2*float64(s.Interval))
	}
}

// streak turns single results into a verdict: rise successes in a row make an
// endpoint ready, fall failures in a row unready. The first result of all is a
// verdict by itself, so that a start does not take rise intervals.
type streak struct {
	ready, judged bool
	against       int // results in a row that contradict the verdict
}

func (k *streak) add(well bool, rise, fall int) bool {
	switch {
	case !k.judged:
		k.judged, k.ready = true, well
	case well == k.ready:
		k.against = 0
	default:
		k.against++
		if well && k.against >= rise || !well && k.against >= fall {
			k.ready, k.against = well, 0
		}
	}
	return k.ready
}

// try is one check: the error says what is wrong with the endpoint.
func try(ctx context.Context, t Target, s *config.HealthCheck) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	address := t.Address()
	nc, err := t.Dial(ctx, s.HTTP != nil || s.GRPC != nil)
	if err != nil {
		return failed(ctx, s, "connecting to "+address, err)
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	switch {
	case s.GRPC != nil:
		return failed(ctx, s, "the gRPC health check of "+address, askGRPC(ctx, nc, s.GRPC.Service, address))
	case s.HTTP != nil:
		return failed(ctx, s, "GET "+s.HTTP.Path+" from "+address, tryHTTP(ctx, nc, s.HTTP, address))
	}
	return nil
}

// failed is the error of a check that ended with err; nil: none.
func failed(ctx context.Context, s *config.HealthCheck, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case conn.TimedOut(err), ctx.Err() == context.DeadlineExceeded:
		return conn.Explain(err, "%s took longer than %v (health_check.timeout)", doing, s.Timeout)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// tryHTTP is try for a check by HTTP. It follows no redirect, and sends path and host as
// the configuration has them.
func tryHTTP(ctx context.Context, nc net.Conn, h *config.HTTPCheck, address string) error {
	host := hostOf(h.Host, address)
	if strings.ContainsAny(h.Path+host, " \r\n") {
		return fmt.Errorf("the check's path %q or host %q contains a space or a line break", h.Path, host)
	}
	c, ok := nc.(Asker)
	if !ok {
		return errors.New("the connection does not speak HTTP")
	}
	a, err := c.Ask(ctx, &Question{Method: http.MethodGet, Host: host, Path: h.Path,
		Fields: [][2]string{{"user-agent", "weir-health-check"}, {"accept", "*/*"}}})
	if err == nil && (a.Status < h.StatusMin || a.Status > h.StatusMax) {
		err = fmt.Errorf("status %d is not within health_check.http.status (%d-%d)", a.Status, h.StatusMin, h.StatusMax)
	}
	return err
}

// hostOf is the Host to send: the one that was configured, or else the address.
func hostOf(host, address string) string {
	switch {
	case host != "":
		return host
	case strings.HasPrefix(address, "unix:"):
		return "localhost"
	}
	return address
}
