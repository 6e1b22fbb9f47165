package filter

// State is what the filters of a route remember of one exchange, or of one tunnel, until its end.
// The zero State is that of the beginning.
type State struct {
	rate rateVerdict
	slot Slot
	run  *scriptRun // of a snippet; nil: none
	cert *certRules // which HTTP headers about the client's certificate endpoints get; nil: none
}

// Size returns how many bytes of texts about the request filters keep.
func (s *State) Size() (n int) {
	if s.run == nil {
		return 0
	}
	n = cap(s.run.path)
	for _, texts := range [...][]string{s.run.variables, s.run.groups} {
		for _, text := range texts {
			n += len(text)
		}
	}
	return n
}

// End releases what the exchange holds. Further calls do nothing.
func (s *State) End() {
	s.slot.Release()
	s.run = nil
}

// Detach hands over the slot of an exchange that becomes a tunnel, or of a connection that does.
// The owner of the tunnel releases it. nil: there is none.
func (s *State) Detach() *Slot {
	if s.slot.of == nil {
		return nil
	}
	slot := s.slot
	s.slot = Slot{}
	return &slot
}
