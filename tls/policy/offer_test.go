package policy

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// A variant with other protocols is otherwise the same policy, with the same session
// ticket keys. weir makes it only once.
func TestOffering(t *testing.T) {
	ca := newAuthority(t, "ca")
	keys := keyring{}
	attached := 0
	p := newPolicy(t, config.TLSPolicy{}, ca.issue(t, "a.example.org", false, time.Now().Add(time.Hour)), func(scope string, c *tls.Config) {
		attached++
		keys.attach(scope, c)
	})
	ech := []tls.EncryptedClientHelloKey{{Config: []byte("x")}}
	p.RetryECH(ech)
	before := attached
	cache := tls.NewLRUClientSessionCache(1)
	f := func(protocols []string, want string, resumed bool) {
		t.Helper()
		with := p.Offering(protocols)
		if with != p.Offering(protocols) || with.http2 != nil || with.Scope != p.Scope || with.Name != p.Name || len(with.Config.EncryptedClientHelloKeys) != 1 {
			t.Errorf("%q: %+v", protocols, with)
		}
		server := with.Config.Clone() // without the session ticket keys of the test
		server.EncryptedClientHelloKeys = nil
		state, err := shake(t, server, &tls.Config{ServerName: "a.example.org", InsecureSkipVerify: true, NextProtos: []string{"h2", "mqtt", "http/1.1"}, ClientSessionCache: cache})
		if err != nil || state.NegotiatedProtocol != want || state.DidResume != resumed {
			t.Errorf("%q: %q is agreed on, resumed: %t, %v", protocols, state.NegotiatedProtocol, state.DidResume, err)
		}
	}
	f(nil, "", false)
	f([]string{"mqtt"}, "mqtt", true)
	f([]string{"x", "mqtt", "h2"}, "mqtt", true)
	f([]string{}, "", true)
	if p.Offering([]string{"a", "b"}) == p.Offering([]string{"a,b"}) {
		t.Error("a name with a comma is taken for two")
	}
	if attached != before+5 {
		t.Errorf("ticket keys were attached to %d configurations", attached-before)
	}
}
