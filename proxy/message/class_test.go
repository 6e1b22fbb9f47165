package message

import (
	"strings"
	"testing"
)

func TestClasses(t *testing.T) {
	f := func(want Class, names ...string) {
		t.Helper()
		for _, name := range names {
			if got := Lookup([]byte(name)).Class(); got != want {
				t.Errorf("%s is of class %d, not %d", name, got, want)
			}
		}
	}
	f(Passed, "Cookie", "Authorization", "X-Custom", "Strict-Transport-Security", "Date", "Via")
	f(Framing, "Host", "Content-Length", "Transfer-Encoding", "Connection", "TE", "Trailer", "Upgrade", "Expect")
	f(Written, "X-Forwarded-For", "Forwarded", "X-Forwarded-Scheme", "X-Scheme", "X-Real-IP", "X-Request-Id", "Client-Cert", "X-Client-Cert-Subject")
	f(Asserted, "True-Client-IP", "X-Client-IP", "CF-Connecting-IP", "X-Cluster-Client-IP", "X-Forwarded-Prefix", "X-SSL-Client-Verify",
		"Front-End-Https", "X-Url-Scheme", "X-Original-Proto", "X-Original-Host")
	f(Refused, "Proxy", "X-Original-URL", "X-Rewrite-URL", "X_Forwarded_For", "X!Real!IP")
	passed := map[ID]bool{StrictTransportSecurity: true, Authorization: true, WWWAuthenticate: true, PersistentAuth: true, Date: true}
	for id := Other + 1; id < numIDs; id++ {
		if !passed[id] && id.Class() == Passed {
			t.Errorf("%d (%s) has no class", id, id)
		}
	}
}

func TestNames(t *testing.T) {
	n := NewNames([]string{"X-User", "x_Group", "Proxy"})
	f := func(name string, has, alike bool) {
		t.Helper()
		if got := n.Has([]byte(name)); got != has {
			t.Errorf("it has %q: %v", name, got)
		}
		if got := n.HasAlike([]byte(name)); got != alike {
			t.Errorf("it has one like %q: %v", name, got)
		}
	}
	f("X-User", true, true)
	f("x-uSER", true, true)
	f("X_User", false, true)
	f("X!User", false, true)
	f("X--User", false, false)
	f("XUser", false, false)
	f("X-Use", false, false)
	f("X-Group", false, true)
	f("X_GROUP", true, true)
	f("", false, false)
	f("X-Users", false, false)
	f(strings.Repeat("x", 1000), false, false)
	for name, begins := range map[string]bool{"X-Internal-A": true, "x_internal.a": true, "X-INTERNAL-": true, "X-Internal": false, "X-InternalA": false, "": false} {
		if BeginsAlike([]byte(name), "x-internal-") != begins {
			t.Errorf("%q begins with x-internal-: not %t", name, begins)
		}
	}
	if none := NewNames(nil); none.Has([]byte("a")) || none.HasAlike([]byte("")) {
		t.Error("an empty set has something")
	}
}

// A client cannot remove a header that a proxy wrote about it.
func TestRestoreAsserted(t *testing.T) {
	var h Head
	h.AddField("Connection", "X-Forwarded-For, x-real-ip, Client-Cert, X-Forwarded-Prefix, True-Client-IP, Host, Content-Length, X-Private, Cookie")
	kept := []string{"X-Forwarded-For", "X-Real-IP", "Client-Cert", "X-Forwarded-Prefix", "True-Client-IP", "Host", "Content-Length"}
	for _, name := range append(kept, "X-Private", "Cookie") {
		h.AddField(name, "1")
	}
	h.DropHopByHop()
	h.RestoreAsserted()
	for _, name := range kept {
		if h.GetName(strings.ToLower(name)) == nil {
			t.Errorf("%s is gone", name)
		}
	}
	if h.GetName("x-private") != nil || h.GetName("cookie") != nil {
		t.Error("what Connection names is still there")
	}
}
