// Package probe finds out how an endpoint treats PROXY headers, by sending it some. It
// knows nothing of how weir serves: of weir it imports only the format of headers.
package probe

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options say what to probe, and how long.
type Options struct {
	Address string // HOST:PORT
	// Host is for the Host header and SNI; empty: the host of Address.
	Host string
	// Wait is how long a connection waits before it sends its header, to find out what
	// happens to a late one. 0: DefaultWait.
	Wait time.Duration
	// Patience is how long the other connections wait for a reaction. 0: DefaultPatience.
	Patience time.Duration

	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: that of package net
}

// The defaults of Options. With them a probe ends within a minute.
const (
	DefaultWait     = 40 * time.Second
	DefaultPatience = 4 * time.Second
)

// atOnce limits the connections that are open at the same time, beside the two that wait.
const atOnce = 3

// A probe ends after Wait and longer, but it always has the time shortest for the connections that do
// not wait.
const (
	longer   = 15 * time.Second
	shortest = 55 * time.Second
)

// prober is one run.
type prober struct {
	Options
	at          string // the address that accepted the first connection
	hello, get  []byte // the payloads
	connections atomic.Int64

	mu    sync.Mutex
	tries []Try
	found found
	known chan struct{} // closed when found is complete
}

// found are the results of the first tries.
type found struct {
	protocol Protocol
	payload  []byte
	version  int              // the version of header to go on with; 0: the endpoint reads none
	reads    map[string]bool  // none, v1, v2
	base     map[string]reply // the replies to none, v1 and v2 with payload
	anything *reply           // to a line that is no PROXY header; nil: the endpoint did not serve it
}

// Run probes an endpoint. An error says that it cannot be reached. Run takes at most
// 55 seconds, or Wait and 15 seconds if that is longer.
func Run(ctx context.Context, o Options) (*Report, error) {
	p := &prober{Options: o, known: make(chan struct{})}
	// Users copy names from URLs. A port has no place in SNI: servers answer with an alert about it.
	p.Host = hostOf(cmp.Or(p.Host, p.Address))
	if p.Wait == 0 {
		p.Wait = DefaultWait
	}
	if p.Patience == 0 {
		p.Patience = DefaultPatience
	}
	if p.Options.dial == nil {
		p.Options.dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	p.hello, p.get = clientHello(p.Host), request(p.Host)
	ctx, cancel := context.WithTimeout(ctx, max(p.Wait+longer, shortest))
	defer cancel()
	begun := time.Now()
	if err := p.resolve(ctx); err != nil {
		return nil, err
	}
	late := p.late(ctx)
	defer func() {
		cancel()
		for range late { // until the connection is closed
		}
	}()
	if err := p.first(ctx); err != nil {
		return nil, err
	}
	close(p.known)
	report := p.report()
	if err := p.second(ctx, report); err != nil {
		return nil, err
	}
	l := <-late
	if l.err != nil {
		return nil, fmt.Errorf("probe %s: connect again: %w", p.Address, l.err)
	}
	report.Late, report.LateSeconds = p.lateReaction(l.reply), l.after.Round(time.Millisecond).Seconds()
	p.note("v"+fmt.Sprint(max(1, p.found.version))+", late", report.Late, l.reply)
	if err := p.ended(ctx); err != nil {
		return nil, err
	}
	report.finish(p, begun)
	return report, nil
}

// ended returns an error if the probe was stopped, or took too long.
func (p *prober) ended(ctx context.Context) error {
	switch err := ctx.Err(); {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("probe %s: the probe did not end in time, because connecting takes too long; run it from a host that is nearer to the endpoint", p.Address)
	case err != nil:
		return fmt.Errorf("probe %s: %w", p.Address, err)
	}
	return nil
}

// resolve finds an address of the endpoint that accepts connections. All tries use it.
func (p *prober) resolve(ctx context.Context) error {
	if strings.Contains(p.Address, "/") {
		return fmt.Errorf("probe %q: the address is not HOST:PORT, and neither a URL nor a Unix socket can be probed", p.Address)
	}
	if _, _, err := net.SplitHostPort(p.Address); err != nil {
		return fmt.Errorf("probe %q: the address is not HOST:PORT: %w", p.Address, err)
	}
	p.at = p.Address
	c, err := p.dial(ctx)
	if err != nil {
		return fmt.Errorf("probe %s: %w; check the address, and that a firewall lets this host connect", p.Address, err)
	}
	p.at = c.RemoteAddr().String()
	return c.Close()
}

// lateReply is the result of the connection that sends its header late.
type lateReply struct {
	reply
	err error
}

// late begins the connection that sends its header after Wait, with the version and the payload that
// first has found until then. The channel is closed after the reply.
func (p *prober) late(ctx context.Context) <-chan lateReply {
	result := make(chan lateReply, 1)
	go func() {
		defer close(result)
		nothing := func(net.Conn) []byte { return nil }
		r, err := p.wait(ctx, nothing, p.Wait, func(c net.Conn) (h, payload []byte) {
			select {
			case <-p.known:
				return headerFor(c, honest(max(1, p.found.version))), p.found.payload
			case <-ctx.Done():
				return nil, nil
			}
		})
		result <- lateReply{r, err}
	}()
	return result
}

// lateReaction is Waits if the header was still in time.
func (p *prober) lateReaction(r reply) Reaction {
	if !r.early && p.found.version > 0 && p.served(r) {
		return Waits
	}
	return r.reaction(p.found.protocol == TLS)
}

// job is one try of a group.
type job struct {
	name    string
	header  writer
	payload []byte
	half    bool
	reply   reply
}

// run does the jobs, some at the same time.
func (p *prober) run(ctx context.Context, jobs []*job) error {
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(jobs))
		turn = make(chan struct{}, atOnce)
	)
	for i, j := range jobs {
		turn <- struct{}{}
		wg.Go(func() {
			j.reply, errs[i] = p.try(ctx, j.header, j.payload, j.half)
			<-turn
		})
	}
	wg.Wait()
	if err := p.ended(ctx); err != nil {
		return err
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("probe %s: connect again: %w; it may limit the connections of one client", p.Address, err)
	}
	return nil
}

// first finds the protocol of the port, and which headers it reads.
func (p *prober) first(ctx context.Context) error {
	names := []string{"none", "v1", "v2"}
	writers := map[string]writer{"none": none, "v1": honest(1), "v2": honest(2)}
	ask := func(payload []byte) (map[string]reply, error) {
		var jobs []*job
		for _, name := range names {
			jobs = append(jobs, &job{name: name, header: writers[name], payload: payload})
		}
		err := p.run(ctx, jobs)
		replies := map[string]reply{}
		for _, j := range jobs {
			replies[j.name] = j.reply
		}
		return replies, err
	}
	for _, k := range []struct {
		protocol Protocol
		payload  []byte
	}{{TLS, p.hello}, {HTTP, p.get}, {Greets, nil}, {Other, p.get}} {
		replies, err := ask(k.payload)
		if err != nil {
			return err
		}
		p.found = found{protocol: k.protocol, payload: k.payload, base: replies, reads: map[string]bool{}}
		for _, name := range names {
			p.found.reads[name] = p.served(replies[name])
		}
		if p.found.reads["v1"] || p.found.reads["v2"] {
			if err := p.compare(ctx); err != nil {
				return err
			}
		}
		if p.found.reads["none"] || p.found.reads["v1"] || p.found.reads["v2"] {
			break
		}
	}
	for _, name := range names {
		r := p.found.base[name]
		p.note(name, p.shown(r), r)
	}
	if r := p.found.anything; r != nil {
		p.note("a line that is no PROXY header", p.shown(*r), *r)
	}
	switch {
	case p.found.reads["v2"]:
		p.found.version = 2
	case p.found.reads["v1"]:
		p.found.version = 1
	}
	return nil
}

// compare sends a line that is no PROXY header. An endpoint that serves the request behind the line
// would serve it behind anything, and an endpoint that answers the line itself, such as a Redis, has
// not read the header either.
func (p *prober) compare(ctx context.Context) error {
	j := &job{header: noHeader, payload: p.found.payload}
	if err := p.run(ctx, []*job{j}); err != nil {
		return err
	}
	if p.served(j.reply) {
		p.found.anything = &j.reply
		p.found.reads["v1"], p.found.reads["v2"] = false, false
	}
	return nil
}

// longestGreeting is more than the greetings of servers have. An endpoint that sends more greets nobody.
const longestGreeting = 8 << 10

// refusals are statuses by which HTTP servers refuse a PROXY header that they read as a
// request.
var refusals = map[int]bool{400: true, 405: true, 414: true, 431: true, 501: true, 505: true}

// served reports whether the endpoint read a request or a ClientHello behind the header.
func (p *prober) served(r reply) bool {
	plain := p.found.base["none"]
	switch p.found.protocol {
	case TLS:
		return shakesHands(r.bytes)
	case HTTP:
		got, base := status(r.bytes), status(plain.bytes)
		return got != 0 && got != 400 && (got == base || !refusals[got])
	case Greets: // more lines than the greeting mean that the server took the header for a command
		return len(r.bytes) > 0 && len(r.bytes) < longestGreeting && !r.closed && status(r.bytes) == 0 && !r.echoes() &&
			(len(plain.bytes) == 0 || plain.closed || lines(r) <= lines(plain))
	}
	return len(r.bytes) > 0 && status(r.bytes) == 0 && !onlyAlert(r.bytes) && !r.echoes() &&
		(len(plain.bytes) == 0 || firstBytes(r) == firstBytes(plain) && (lines(r) <= lines(plain) || len(r.bytes) >= longestGreeting))
}

// echoes reports whether the endpoint sent the header back.
func (r *reply) echoes() bool {
	return len(r.sent) > 0 && bytes.Contains(r.bytes, r.sent[:min(len(r.sent), 5)])
}

func onlyAlert(b []byte) bool { return b[0] == recordAlert && onlyRecords(b) }

func lines(r reply) int { return bytes.Count(r.bytes, []byte("\n")) }

func firstBytes(r reply) string { return string(r.bytes[:min(len(r.bytes), 16)]) }

// second sends odd headers, and adds the reactions to the report.
func (p *prober) second(ctx context.Context, report *Report) error {
	version := max(1, p.found.version)
	payload := p.found.payload
	base := honest(version)
	jobs := []*job{
		{name: "truncated", header: base.cut(), half: true},
		{name: "duplicated", header: base.twice(), payload: payload},
		{name: "spoofed", header: spoofed(version), payload: payload},
		{name: "v1 UNKNOWN", header: local(1), payload: payload},
		{name: "v2 LOCAL", header: local(2), payload: payload},
		{name: "v2 with TLVs", header: withTLVs(p.Host), payload: payload},
		{name: "v2 with CRC32C", header: withChecksum(true), payload: payload},
		{name: "v2 with a wrong CRC32C", header: withChecksum(false), payload: payload},
	}
	for _, m := range malformed {
		if p.found.version == 0 || p.found.reads[fmt.Sprint("v", m.version)] {
			jobs = append(jobs, &job{name: m.name, header: m.header, payload: payload})
		}
	}
	if p.found.protocol == TLS {
		if p.found.version > 0 {
			jobs = append(jobs, &job{name: "plaintext behind a header", header: base, payload: p.get})
		}
		if p.found.reads["none"] {
			jobs = append(jobs, &job{name: "plaintext", header: none, payload: p.get})
		}
	}
	stalled := make(chan lateReply, 1)
	end, _ := ctx.Deadline()
	stall := min(max(p.Wait-2*p.Patience, p.Wait/2), time.Until(end)-p.Patience-dialTimeout)
	go func() {
		first := func(c net.Conn) []byte { return headerFor(c, base.cut()) }
		r, err := p.wait(ctx, first, stall, func(c net.Conn) (h, _ []byte) {
			whole := headerFor(c, base)
			return whole[len(headerFor(c, base.cut())):], payload
		})
		stalled <- lateReply{r, err}
	}()
	if err := p.run(ctx, jobs); err != nil {
		return err
	}
	s := <-stalled
	if s.err != nil {
		return fmt.Errorf("probe %s: connect again: %w", p.Address, s.err)
	}
	report.Stalled = p.lateReaction(s.reply)
	p.note("stalled", report.Stalled, s.reply)
	var leniently Reaction // the worst reaction to malformed headers that the endpoint serves
	for _, j := range jobs {
		r := j.reply.reaction(p.found.protocol == TLS)
		shown := p.shown(j.reply)
		read := p.found.version > 0 && shown == Serves
		switch {
		case j.name == "truncated":
			report.Truncated, shown = r, r
		case j.name == "duplicated":
			report.Duplicated = shown
		case j.name == "spoofed":
			report.Spoofed = shown
		case j.name == "v1 UNKNOWN":
			report.Reads.Unknown = read
		case j.name == "v2 LOCAL":
			report.Reads.Local = read
		case j.name == "v2 with TLVs":
			report.Reads.TLVs = read
		case j.name == "v2 with CRC32C":
			report.Reads.CRC32C = read
		case j.name == "v2 with a wrong CRC32C":
			report.Reads.WrongCRC32C = read
		case strings.HasPrefix(j.name, "plaintext"):
			report.Plaintext, shown = worse(report.Plaintext, r), r
		case read:
			report.ServesMalformed = append(report.ServesMalformed, j.name)
			leniently = worse(leniently, r)
		default:
			report.Malformed = worse(report.Malformed, r)
		}
		p.note(j.name, shown, j.reply)
	}
	if report.Malformed == "" {
		report.Malformed = leniently
	}
	return nil
}

// shown is the reaction to a try, or Serves.
func (p *prober) shown(r reply) Reaction {
	if p.served(r) {
		return Serves
	}
	return r.reaction(p.found.protocol == TLS)
}

func (p *prober) note(name string, shown Reaction, r reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tries = append(p.tries, Try{Header: name, Reaction: shown, Seconds: r.after.Round(time.Millisecond).Seconds(), Reply: r.summary()})
}
