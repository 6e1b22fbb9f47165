// Package soak is weir's own soak test. For the time in -for, TestSoak exposes weir to everything that may
// happen in a year, all at the same time. Then it checks that every resource has returned to its initial level.
//
//	go test ./e2e/soak -for 15s                     # half a minute
//	go test ./e2e/soak -for 8h -load 5 -timeout 0   # a night, with more of everything
//
// Clients of all kinds, most of them "weir soak", keep connections open, open many new ones, misbehave, and
// stay idle. Meanwhile the configuration changes, and endpoints appear, shut down and die. Two more weirs
// behind the first one, which read its PROXY headers, are drained and restarted. No request may fail except
// those that the test itself spoils, and every client address must be right. When the clients are gone, the
// numbers of goroutines, descriptors, open and parked connections, and the memory, must be as before.
//
// Two more tests run by flags of their own, and in CI in a short form:
//
//	go test ./e2e/soak -run TestEndurance -endure 100 -timeout 0  # 1,000 reloads, 100 upgrades and 100 drains under load
//	go test ./e2e/soak -run TestMillion -idle 100000 -timeout 0   # 100,000 idle TLS connections on several weirs; needs root
//
// On a machine with much other work, -patience 2m makes all waits longer.
//
// The environment variable WEIR_E2E_BINARY names a binary to test, for example one built with -race. Without
// it, the test builds the binary.
package soak
