package memory

import "time"

// A ration holds back connections with many exchanges while memory runs out, whatever their accounts say. It counts
// only exchanges.
const (
	// Few is the number of exchanges of a connection that are never held back.
	Few = 8
	// rationWait is how long a connection waits at a time.
	rationWait = 250 * time.Millisecond
)

// Allow begins a ration after d; negative: at once. The next call replaces it. With NoRation there is none. So a caller that watches the
// memory, and is late because the machine is busy, does not leave the process without a watch.
func (p *Process) Allow(d time.Duration) {
	allowed := int64(0)
	if d != NoRation {
		allowed = int64(time.Since(p.began) + d)
	}
	p.allowed.Store(allowed)
}

// NoRation is Allow's value for no ration.
const NoRation time.Duration = 1<<63 - 1

func (p *Process) rationed() bool {
	allowed := p.allowed.Load()
	return allowed != 0 && int64(time.Since(p.began)) > allowed
}

// ChargeExchange takes the memory of one more exchange. It returns false if
// a limit is reached, or in a ration if the connection runs Few or more. EndExchange must follow, and gives no memory back.
func (a *Account) ChargeExchange() bool {
	if a == nil || a.process == nil {
		return true
	}
	if a.running.Load() >= Few && a.process.rationed() {
		a.process.refused[OfProcess].Add(1)
		return false
	}
	if !a.Charge(Exchange) {
		return false
	}
	a.running.Add(1)
	return true
}

// Received counts n bytes that running exchanges have received.
func (a *Account) Received(n int64) {
	if a != nil {
		a.received.Add(n)
	}
}

// EndExchange ends an exchange of ChargeExchange that has received this many bytes.
func (a *Account) EndExchange(received int64) {
	if a != nil && a.process != nil {
		a.running.Add(-1)
		a.received.Add(-received)
	}
}

// Exchanges returns how many exchanges run, and how many bytes they have received.
func (a *Account) Exchanges() (running int, received int64) {
	return int(a.running.Load()), a.received.Load()
}

// AwaitRation waits for a moment in a ration if more than Few exchanges run. Callers then read from the connection, and
// so make weir hold more.
func (a *Account) AwaitRation() {
	if a != nil && a.process != nil && a.running.Load() > Few && a.process.rationed() {
		time.Sleep(rationWait)
	}
}
