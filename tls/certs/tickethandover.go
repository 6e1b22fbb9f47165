package certs

import (
	"encoding/json"
	"fmt"
	"time"
)

// Keys returns the keys of all scopes, for a process that takes over. The keys are secret:
// they decrypt recorded sessions of TLS 1.2.
func (t *Tickets) Keys() ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]json.RawMessage)
	for name, s := range t.scopes {
		text, err := encodeTickets(s.keys)
		if err != nil {
			return nil, err
		}
		all[name] = text
	}
	return json.Marshal(all)
}

// Adopt takes the result of Keys of another process. Scopes that are attached later begin with
// these keys, so that sessions resume. Call it before the first Attach. No error contains a key.
func (t *Tickets) Adopt(data []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return errTicketObject
	}
	given := make(map[string][]ticketKey)
	now := time.Now()
	for name, text := range all {
		keys, err := decodeTickets(text)
		if err != nil {
			return fmt.Errorf("the session ticket keys of %q: %w", name, err)
		}
		for _, k := range keys {
			if !k.expired(now) {
				given[name] = append(given[name], k)
			}
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.given = given
	return nil
}
