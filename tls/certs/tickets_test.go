package certs

import (
	"context"
	"crypto/tls"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// resumer is a client with a session cache.
func resumer(version uint16) *tls.Config {
	return &tls.Config{ClientSessionCache: tls.NewLRUClientSessionCache(0), MinVersion: version, MaxVersion: version}
}

func resumed(t testing.TB, server, client *tls.Config) bool {
	t.Helper()
	state, err := shake(t, server, client, "app.example.org")
	if err != nil {
		t.Fatal(err)
	}
	return state.DidResume
}

func ticketServer(t testing.TB, tickets *Tickets, scope string) *tls.Config {
	c := allSuites(newStore(t, selfSigned("app.example.org")))
	tickets.Attach(scope, c)
	return c
}

var bothVersions = []uint16{tls.VersionTLS12, tls.VersionTLS13}

func TestTicketScopes(t *testing.T) {
	for _, version := range bothVersions {
		tickets := NewTickets()
		a1, a2, b := ticketServer(t, tickets, "a"), ticketServer(t, tickets, "a"), ticketServer(t, tickets, "b")
		client := resumer(version)
		if resumed(t, a1, client) {
			t.Error("a session was resumed that never was")
		}
		if !resumed(t, a1, client) || !resumed(t, a2, client) {
			t.Errorf("%s: a session was not resumed by a configuration of its scope, as after a reload", tls.VersionName(version))
		}
		if resumed(t, b, client) {
			t.Errorf("%s: a session was resumed in another scope", tls.VersionName(version))
		}
	}
}

// ticketLag is the time after which Run has surely done the work that is due.
const ticketLag = 2 * ticketInterval

// A ticket is valid while its key is one of the last three, in old and new
// configurations.
func TestTicketRotation(t *testing.T) {
	const keys = int(ticketLife / ticketRotation)
	for _, version := range bothVersions {
		synctest.Test(t, func(t *testing.T) {
			tickets := NewTickets()
			server := ticketServer(t, tickets, "a")
			run(t, tickets)
			clients := make([]*tls.Config, keys+1)
			for i := range clients {
				clients[i] = resumer(version)
				if resumed(t, server, clients[i]) {
					t.Error("a session was resumed that never was")
				}
			}
			for i, client := range clients {
				reloaded := ticketServer(t, tickets, "a")
				if got, want := resumed(t, reloaded, client), i < keys; got != want {
					t.Errorf("%s: after %d rotations a session is resumed: %v, want %v", tls.VersionName(version), i, got, want)
				}
				time.Sleep(ticketRotation + ticketLag)
				synctest.Wait()
			}
			// The configuration from the start also has the new keys.
			if client := resumer(version); resumed(t, server, client) || !resumed(t, ticketServer(t, tickets, "a"), client) {
				t.Error("a configuration in use was left out of the rotation")
			}
			if n := len(tickets.scopes["a"].list); n != keys {
				t.Errorf("%d keys are kept, want %d", n, keys)
			}
		})
	}
}

// run runs tickets until the end of the test.
func run(t *testing.T, tickets *Tickets) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { tickets.Run(ctx); close(done) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// Tickets keeps neither replaced configurations nor their scopes.
func TestTicketsForget(t *testing.T) {
	tickets := NewTickets()
	kept := new(tls.Config)
	tickets.Attach("kept", kept)
	for range 100 {
		tickets.Attach("kept", new(tls.Config))
		tickets.Attach("gone", new(tls.Config))
	}
	// The first garbage collection after the last use clears a weak pointer.
	runtime.GC()
	tickets.Attach("kept", kept)
	tickets.tend()
	if n := len(tickets.scopes["kept"].configs); n > 3 {
		t.Errorf("%d configurations are held on to, want the one in use", n)
	}
	if _, ok := tickets.scopes["gone"]; ok {
		t.Error("a scope without configurations is held on to")
	}
	runtime.KeepAlive(kept)
}
