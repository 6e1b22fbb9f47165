package filter

// State is what the filters of a route remember of one exchange, or of one tunnel, until its end.
// The zero State is that of the beginning.
type State struct {
	rate rateVerdict
}
