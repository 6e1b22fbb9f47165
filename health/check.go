package health

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
)

// Target is one endpoint that a check tests.
type Target interface {
	// Address is the address to which the check connects, ip:port or unix:/path.
	Address() string
	// Dial connects for one check. It sends the PROXY header, and does the TLS handshake
	// of a check by HTTP or gRPC if the endpoint uses TLS. For a check by HTTP the
	// connection is an Asker. For a check by gRPC it is an Asker if it uses HTTP/2. The
	// check closes the connection.
	Dial(ctx context.Context, forHTTP bool) (Connection, error)
	// SetReady is called after each check. ready means that the endpoint counts as ready.
	// why is the reason why the last check failed, empty if it succeeded.
	SetReady(ready bool, why string)
}

// Connection is the connection of one check to an endpoint.
type Connection interface {
	// Cut ends all waits for the endpoint, now and later. Another goroutine may call it
	// until Close.
	Cut()
	Close() error
}

// Checker runs active checks, each in its own goroutine.
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

// Start checks t at once, and then at the interval until the caller calls stop, which
// does not wait. wasReady means that t is already in use: then only settings.Fall
// consecutive failures make it unready. Without wasReady the first check alone is the
// first verdict.
func (c *Checker) Start(t Target, settings config.HealthCheck, wasReady bool) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithCancel(c.ctx)
	if ctx.Err() == nil {
		c.running.Go(func() { run(ctx, t, &settings, wasReady) })
	}
	return cancel
}

// Close ends all checks and waits for them, at most for the timeout of a check.
func (c *Checker) Close() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.running.Wait()
}

func run(ctx context.Context, t Target, s *config.HealthCheck, wasReady bool) {
	streak := streak{ready: wasReady, judged: wasReady}
	// The second check starts at a random time within the interval. Otherwise checks that
	// started together, at a start or reload, would stay together.
	spread := time.Duration(rand.Float64() * float64(s.Interval))
	for {
		next := time.Now().Add(spread)
		err := try(ctx, t, s)
		if ctx.Err() != nil {
			return
		}
		// If weir has no descriptor left, the check shows nothing about the endpoint. The
		// old verdict stays; otherwise all endpoints would seem to fail at the same time.
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

// streak turns single results into a verdict: rise consecutive successes make an endpoint
// ready, fall consecutive failures make it unready. The very first result is a verdict by
// itself, so that a start does not take rise intervals.
type streak struct {
	ready, judged bool
	against       int // consecutive results that contradict the verdict
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

// try runs one check. Its error says what is wrong with the endpoint; nil: the check succeeded.
func try(ctx context.Context, t Target, s *config.HealthCheck) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	address := t.Address()
	c, err := t.Dial(ctx, s.HTTP != nil || s.GRPC != nil)
	if err != nil {
		return failed(ctx, s, "connecting to "+address, err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, c.Cut)
	defer stop()
	switch {
	case s.GRPC != nil:
		return failed(ctx, s, "the gRPC health check of "+address, askGRPC(ctx, c, s.GRPC.Service, address))
	case s.HTTP != nil:
		return failed(ctx, s, "GET "+s.HTTP.Path+" from "+address, tryHTTP(ctx, c, s.HTTP, address))
	}
	return nil
}

// failed returns the error of a check that ended with err; nil: no error.
func failed(ctx context.Context, s *config.HealthCheck, doing string, err error) error {
	switch {
	case err == nil:
		return nil
	case conn.TimedOut(err), ctx.Err() == context.DeadlineExceeded:
		return conn.Explain(err, "%s took longer than %v (health_check.timeout)", doing, s.Timeout)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// tryHTTP is try for a check by HTTP. It follows no redirect, and sends path and host
// exactly as configured.
func tryHTTP(ctx context.Context, c Connection, h *config.HTTPCheck, address string) error {
	host := hostOf(h.Host, address)
	if strings.ContainsAny(h.Path+host, " \r\n") {
		return fmt.Errorf("the check's path %q or host %q contains a space or a line break", h.Path, host)
	}
	asker, ok := c.(Asker)
	if !ok {
		return errors.New("the connection does not speak HTTP")
	}
	a, err := asker.Ask(ctx, &Question{Method: http.MethodGet, Host: host, Path: h.Path,
		Fields: [][2]string{{"user-agent", "weir-health-check"}, {"accept", "*/*"}}})
	if err == nil && (a.Status < h.StatusMin || a.Status > h.StatusMax) {
		err = fmt.Errorf("status %d is not within health_check.http.status (%d-%d)", a.Status, h.StatusMin, h.StatusMax)
	}
	return err
}

// hostOf returns the Host to send: the configured one, or else the address.
func hostOf(host, address string) string {
	switch {
	case host != "":
		return host
	case strings.HasPrefix(address, "unix:"):
		return "localhost"
	}
	return address
}
