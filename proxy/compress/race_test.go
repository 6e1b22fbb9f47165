//go:build race

package compress

// raceEnabled: under the race detector a sync.Pool drops objects at random.
const raceEnabled = true
