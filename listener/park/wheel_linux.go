package park

import "time"

// tick is a time, counted in steps of resolution from when the set was made. It starts at
// 1.
type tick uint32

// resolution is the longest delay until a passed deadline is noticed.
const resolution = 50 * time.Millisecond

// slots times resolution is one turn of the wheel, 51 seconds. A turn checks a deadline
// that is further away once, and keeps it until its own turn.
const slots = 1024

// wheel holds the deadlines of all waits: a list of places for each step of time, and one
// timer of the runtime, which is set to the next step that has a deadline. A deadline
// needs no memory beside its place, and no CPU time until its slot comes.
type wheel struct {
	began  time.Time
	hand   tick // the last step that was checked
	next   tick // the step of the timer; zero: the timer is not set
	count  int  // number of deadlines
	timer  *time.Timer
	firsts [slots]int32
}

func (w *wheel) init(now time.Time) {
	w.began = now
	for i := range w.firsts {
		w.firsts[i] = none
	}
}

// passed returns the last step that has begun.
func (w *wheel) passed(now time.Time) tick { return tick(now.Sub(w.began) / resolution) }

// schedule puts place i into the slot of its deadline. The slot is the first step after
// the deadline, so a wait never ends early.
func (s *Set) schedule(i int32, p *place, deadline time.Time) {
	w := &s.wheel
	if w.count == 0 {
		w.hand = w.passed(time.Now())
	}
	const last = time.Duration(1<<32-2) * resolution
	p.due = max(w.hand, tick(min(max(deadline.Sub(w.began), 0), last)/resolution)) + 1
	w.count++
	first := &w.firsts[p.due%slots]
	if p.next = *first; p.next != none {
		s.at(p.next).prev = i
	}
	p.prev = none
	*first = i
	if w.next == 0 || p.due < w.next {
		s.setTimer(p.due)
	}
}

func (s *Set) unschedule(p *place) {
	w := &s.wheel
	if p.next != none {
		s.at(p.next).prev = p.prev
	}
	if p.prev != none {
		s.at(p.prev).next = p.next
	} else {
		w.firsts[p.due%slots] = p.next
	}
	p.due = 0
	w.count--
}

func (s *Set) setTimer(at tick) {
	w := &s.wheel
	w.next = at
	d := time.Until(w.began.Add(time.Duration(at) * resolution))
	if w.timer == nil {
		w.timer = time.AfterFunc(d, s.turn)
		return
	}
	w.timer.Reset(d)
}

// turn ends the waits whose deadline has passed.
func (s *Set) turn() {
	for _, w := range s.takeLate() {
		w.Wake(Late)
	}
}

func (s *Set) takeLate() (late []Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.wheel
	now := w.passed(time.Now())
	if now > w.hand+slots { // after a longer pause, one turn checks each slot once
		w.hand = now - slots
	}
	for w.hand < now {
		w.hand++
		for i := w.firsts[w.hand%slots]; i != none; {
			p := s.at(i)
			next := p.next
			if p.due <= now {
				late = append(late, s.give(token(i, p.generation)))
			}
			i = next
		}
	}
	w.next = 0
	for at := w.hand + 1; w.count > 0 && at <= w.hand+slots; at++ {
		if w.firsts[at%slots] != none {
			s.setTimer(at)
			break
		}
	}
	return late
}
