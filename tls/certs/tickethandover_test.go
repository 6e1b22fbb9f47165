package certs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A process that takes over resumes the sessions of the one before, in their scope, until their keys are too old.
func TestTicketsAreHandedOver(t *testing.T) {
	for _, version := range bothVersions {
		synctest.Test(t, func(t *testing.T) {
			old := NewTickets()
			client := resumer(version)
			resumed(t, ticketServer(t, old, "a"), client)
			ticketServer(t, old, "b")
			keys, err := old.Keys()
			if err != nil {
				t.Fatal(err)
			}
			next := NewTickets()
			if err := next.Adopt(keys); err != nil {
				t.Fatal(err)
			}
			if !resumed(t, ticketServer(t, next, "a"), client) {
				t.Error("a session was not resumed")
			}
			again, err := next.Keys()
			if err != nil || !bytes.Equal(keysOf(again, "a"), keysOf(keys, "a")) {
				t.Errorf("it passes other keys on: %v", err)
			}
			if resumed(t, ticketServer(t, next, "b"), client) {
				t.Error("a session was resumed in another scope")
			}
			time.Sleep(ticketLife)
			late := NewTickets()
			if err := late.Adopt(keys); err != nil {
				t.Fatal(err)
			}
			if len(late.given) > 0 {
				t.Error("keys that are too old are in use")
			}
		})
	}
}

// An error must not contain a key.
func TestAdoptDamagedTickets(t *testing.T) {
	f := func(text string) {
		t.Helper()
		tickets := NewTickets()
		if err := tickets.Adopt([]byte(text)); err == nil || strings.Contains(fmt.Sprint(err), "c2VjcmV0") {
			t.Errorf("%s: %v", text, err)
		}
	}
	f(``)
	f(`7`)
	f(`{"a": {"keys": []}}`)
	f(`{"a": {"keys": [{"key": "c2VjcmV0", "created": "2026-01-01T00:00:00Z"}]}}`)
}

// keysOf returns the keys of a scope in the result of Keys.
func keysOf(all []byte, scope string) []byte {
	var scopes map[string]json.RawMessage
	json.Unmarshal(all, &scopes)
	return scopes[scope]
}
