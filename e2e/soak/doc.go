// Package soak is weir's own soak test: for as long as -for says it does
// everything to a weir at once that may happen to it in a year, and then looks
// whether all is back where it began.
//
//	go test ./e2e/soak -for 15s                     # half a minute
//	go test ./e2e/soak -for 8h -load 5 -timeout 0   # a night, with more of everything
//
// Clients of all kinds, most of them "weir soak", hold, churn, misbehave and
// keep quiet; meanwhile the configuration changes, endpoints come, go and die,
// and two further weirs behind the first one, which take its PROXY headers, are
// drained and started anew. No request may fail but those that the test itself
// spoils, no client address may be wrong; and when the clients are gone,
// goroutines, descriptors, memory, and connections open and parked have to be
// what they were.
//
// WEIR_E2E_BINARY names a binary to soak instead of building one, one built with
// -race for instance.
package soak
