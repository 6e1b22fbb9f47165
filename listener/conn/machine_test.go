package conn

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/listener/park"
)

// These tests run the real state machine in a simulated system. Its time passes only while all goroutines
// wait, so the tests can state the exact moment at which a wait ends.

// since counts the time from a moment.
type since struct{ begun time.Time }

func begin() since { return since{time.Now()} }

func (s since) want(t *testing.T, what string, want time.Duration) {
	t.Helper()
	if got := time.Since(s.begun); got != want {
		t.Errorf("%s after %v, want %v", what, got, want)
	}
}

// after calls f when d has passed.
func after(d time.Duration, f func()) { time.AfterFunc(d, f) }

// collector reads once in each step, and keeps all bytes.
type collector struct {
	c     *Conn
	got   strings.Builder
	end   error
	steps int
}

func (r *collector) step() bool {
	r.steps++
	var buf [64]byte
	n, err := r.c.Read(buf[:])
	r.got.Write(buf[:n])
	if err != nil && err != ErrWouldBlock {
		r.end = err
	}
	return r.end != nil
}

// all reads until nothing is left.
func (r *collector) all() bool {
	for before := -1; before < r.got.Len(); {
		if before = r.got.Len(); r.step() {
			return true
		}
	}
	return false
}

// A wait ends at its deadline: not earlier, and not later, whatever bytes arrive meanwhile.
func TestMachineDeadline(t *testing.T) {
	for _, deadline := range []time.Duration{time.Millisecond, Linger - 1, Linger, Linger + 1, 10 * Linger} {
		for _, every := range []time.Duration{0, Linger / 3, 2 * Linger} {
			eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
				begun := begin()
				c.SetReadDeadline(begun.begun.Add(deadline))
				sent := 0
				for at := every; at > 0 && at < deadline; at += every {
					after(at, func() { s.arrive("x", false) })
					sent++
				}
				r := collector{c: c}
				wantError(t, c.Await(r.step), os.ErrDeadlineExceeded)
				begun.want(t, "the wait ended", deadline)
				if r.got.Len() != sent {
					t.Errorf("read %d bytes of %d", r.got.Len(), sent)
				}
				wantError(t, c.Await(r.step), os.ErrDeadlineExceeded)
				begun.want(t, "the next wait ended", deadline)
			})
		}
	}
}

// If the end of a stream arrives in one event with the last bytes, a step that reads once finds it after
// Linger. A step that looks for the end finds it at once.
func TestMachineFindsTheEnd(t *testing.T) {
	for _, asks := range []bool{false, true} {
		eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
			c.JoinPoller()
			begun := begin()
			after(3*Linger, func() { s.arrive("last", true) })
			r := collector{c: c}
			wantError(t, c.Await(func() bool {
				done := r.step()
				return done || asks && r.got.Len() > 0 && c.LookAgain() && r.step()
			}), nil)
			want := 4 * Linger
			if asks {
				want = 3 * Linger
			}
			begun.want(t, "the end was found", want)
			if r.got.String() != "last" || r.end != io.EOF || !c.SawEnd() {
				t.Errorf("read %q, %v", r.got.String(), r.end)
			}
		})
	}
}

// A tunnel's connection that waits in the poller finds such an end at once, because the lot reports it.
func TestMachineWatchesForTheEnd(t *testing.T) {
	eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
		c.SetDuplex(true)
		c.JoinPoller()
		begun := begin()
		after(Linger/2, func() { s.arrive("last", true) })
		r := collector{c: c}
		wantError(t, c.AwaitBusy(r.all), nil)
		begun.want(t, "the end was found", Linger/2)
		if r.got.String() != "last" || r.end != io.EOF {
			t.Errorf("read %q, %v", r.got.String(), r.end)
		}
	})
}

// After a read has returned all bytes, no second read fails with EAGAIN.
func TestMachineReadsOnce(t *testing.T) {
	eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
		c.JoinPoller()
		const events = 5
		for i := range events {
			after(time.Duration(i+1)*Linger/100, func() { s.arrive("x", false) })
		}
		c.SetReadDeadline(time.Now().Add(Linger / 10))
		r := collector{c: c}
		wantError(t, c.Await(r.all), os.ErrDeadlineExceeded)
		if s.calls != 1+events { // the first read finds nothing
			t.Errorf("%d reads for %d events", s.calls, events)
		}
	})
}

// AwaitOrPark ends Linger after the last bytes. It asks mayPark once, again after each Stir, and again after
// bytes.
func TestMachineMayPark(t *testing.T) {
	eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
		begun := begin()
		after(Linger/2, func() { s.arrive("x", false) })
		r := collector{c: c}
		wantError(t, c.AwaitOrPark(r.step, func() bool { return true }), ErrQuiet)
		if took := time.Since(begun.begun); took < Linger/2+Linger || took > Linger/2+2*Linger {
			t.Errorf("it rested %v after the last bytes", took-Linger/2)
		}

		c.JoinPoller()
		begun = begin()
		answers := []bool{false, false, false, true}
		var asked []time.Duration
		after(2*Linger, c.Stir)
		after(3*Linger, func() { s.arrive("y", false) })
		after(6*Linger, c.Stir)
		wantError(t, c.AwaitOrPark(r.step, func() bool {
			asked = append(asked, time.Since(begun.begun))
			return answers[len(asked)-1]
		}), ErrQuiet)
		if got, want := fmt.Sprint(asked), fmt.Sprint([]time.Duration{Linger, 2 * Linger, 4 * Linger, 6 * Linger}); got != want {
			t.Errorf("asked after %s, want %s", got, want)
		}
		if c.ParkDenied() || c.has(signalStir) {
			t.Error("the answer outlives its wait")
		}
		c.Stir() // no goroutine waits
		after(Linger/4, func() { s.arrive("", true) })
		wantError(t, c.Await(r.step), nil)
	})
}

// A bare connection of a tunnel may be parked as soon as there are no bytes. If it waits often, it joins the
// poller. If it is idle again, it stays bare.
func TestMachineBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := play()
		c.SetDuplex(true)
		r := collector{c: c}
		busy := func(want time.Duration, polled bool) {
			t.Helper()
			begun := begin()
			wantError(t, c.AwaitBusy(r.step), ErrQuiet)
			begun.want(t, "it was quiet", want)
			if c.Polled() != polled {
				t.Errorf("polled: %t", c.Polled())
			}
		}
		for range 3 {
			for range calmWaits {
				busy(0, false)
			}
			time.Sleep(Linger + 1)
		}
		for range calmWaits {
			busy(0, false)
		}
		busy(Linger, true)
		busy(Linger, true)
		after(Linger/2, func() { s.arrive("x", false) })
		busy(2*Linger, true) // bytes do not move the deadline of the poller
		c.Unpoll()
		busy(0, false)
		c.Close()
		s.wantClosed(t)
	})
}

// Interrupt, Cut and the lot end a wait at once, in every state.
func TestMachineSignals(t *testing.T) {
	for name, f := range map[string]struct {
		act  func(*Conn)
		want error
	}{
		"Interrupt": {(*Conn).Interrupt, ErrInterrupted},
		"Cut":       {(*Conn).Cut, ErrCut},
	} {
		for _, at := range []time.Duration{0, Linger / 2, 5 * Linger} {
			eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
				begun := begin()
				after(at, func() { f.act(c) })
				r := collector{c: c}
				wantError(t, c.Await(r.step), f.want)
				begun.want(t, name+" ended the wait", at)
				wantError(t, c.Await(r.step), f.want)
				_, err := c.Read(make([]byte, 1))
				wantError(t, err, f.want)
				c.Resume()
				if f.want == ErrInterrupted {
					s.arrive("x", true)
					wantError(t, c.Await(r.step), nil)
				}
			})
		}
	}
}

// A parked connection is woken by bytes, by its deadline, by Interrupt and by Cut, and only once.
func TestMachineParked(t *testing.T) {
	eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
		for want, act := range map[park.Reason]func(){
			park.Ready:  func() { s.arrive("x", false) },
			park.Late:   func() {},
			park.Called: c.Interrupt,
		} {
			begun := begin()
			p := make(playedWaiter, 2)
			if !c.Park(p, begun.begun.Add(2*Linger)) || !c.Parked() {
				t.Fatal("it cannot be parked")
			}
			after(Linger, act)
			if got := <-p; got != want {
				t.Errorf("woken with %d, want %d", got, want)
			}
			switch want {
			case park.Late:
				begun.want(t, "it was woken", 2*Linger)
				wantError(t, c.Woken(want), os.ErrDeadlineExceeded)
			case park.Ready:
				begun.want(t, "it was woken", Linger)
				wantError(t, c.Woken(park.Late), nil) // bytes are more important than the deadline
				wantRead(t, c, "x")
			}
			c.Resume()
			time.Sleep(5 * Linger)
			if len(p) > 0 || c.Parked() {
				t.Error("woken twice, or still parked")
			}
		}
	})
}

type playedWaiter chan park.Reason

func (p playedWaiter) Wake(why park.Reason) { p <- why }

// WriteTimeout limits the time without progress. It does not apply to a tunnel's connection, whose writes
// only Cut ends.
func TestMachineWriteTimeout(t *testing.T) {
	write := func(c *Conn, n int) error {
		_, err := c.Write(make([]byte, n))
		return err
	}
	t.Run("alone", func(t *testing.T) {
		eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
			s.room, c.WriteTimeout = 10, time.Second
			begun := begin()
			wantError(t, write(c, 11), os.ErrDeadlineExceeded)
			begun.want(t, "the write failed", time.Second)
		})
	})
	t.Run("split", func(t *testing.T) {
		eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
			s.room, c.WriteTimeout = 10, time.Second
			c.Split()
			begun := begin()
			after(500*time.Millisecond, func() { s.take(10) })
			after(1200*time.Millisecond, func() { s.take(10) })
			wantError(t, write(c, 31), os.ErrDeadlineExceeded)
			begun.want(t, "the write failed", 3*time.Second) // after progress, each timeout starts again
			if c.BytesWritten != 30 {
				t.Errorf("%d bytes were written", c.BytesWritten)
			}
		})
	})
	t.Run("duplex", func(t *testing.T) {
		eachPlayed(t, func(t *testing.T, c *Conn, s *played) {
			s.room, c.WriteTimeout = 10, time.Second
			c.SetDuplex(true)
			begun := begin()
			after(time.Hour, c.Cut)
			wantError(t, write(c, 11), ErrCut)
			begun.want(t, "the write failed", time.Hour)
		})
	})
}

// Whatever the owner and other goroutines do, no byte is lost, and the end is found within
// Linger.
func TestMachineAtRandom(t *testing.T) {
	for seed := range uint64(300) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { walk(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func walk(t *testing.T, random *rand.Rand) {
	c, s := play()
	duplex := random.IntN(2) == 0
	c.SetDuplex(duplex)
	var sent strings.Builder
	begun := time.Now()
	moment := func() time.Duration { return 1 + time.Duration(random.Int64N(int64(Linger))) }
	at := time.Duration(0)
	for i := range 20 {
		at += 1 + moment()*time.Duration(random.IntN(3))
		text := strings.Repeat(fmt.Sprint(i%10), random.IntN(100))
		sent.WriteString(text)
		end := i == 19
		after(at, func() { s.arrive(text, end) })
		after(at+moment(), c.Stir)
	}
	r := collector{c: c}
	for r.end == nil {
		var err error
		switch kind := random.IntN(4); {
		case kind == 0 && !duplex:
			c.SetReadDeadline(time.Now().Add(moment()))
			if err = c.Await(r.all); err == os.ErrDeadlineExceeded {
				err = nil
			}
			c.SetReadDeadline(time.Time{})
		case kind == 1 && duplex:
			err = c.AwaitBusy(r.all)
		case kind == 2:
			err = c.AwaitOrPark(r.all, func() bool { return random.IntN(2) == 0 })
		default:
			p := make(playedWaiter, 1)
			if !c.Park(p, time.Now().Add(moment())) {
				t.Fatal("it cannot be parked")
			}
			<-p
			if random.IntN(2) == 0 {
				c.Unpoll()
			}
		}
		if err != nil && err != ErrQuiet {
			t.Fatal(err)
		}
	}
	if r.got.String() != sent.String() || r.end != io.EOF {
		t.Errorf("read %q, %v; want %q", r.got.String(), r.end, sent.String())
	}
	if late := time.Since(begun) - at; late > Linger {
		t.Errorf("the end was found after %v", late)
	}
	c.Close()
	s.wantClosed(t)
}
