package filter

import (
	"net/netip"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// known authenticates every request as one user.
type known struct{ hides bool }

func (k known) authenticate(x Exchange) *Identity {
	if x.Request().Get(message.Authorization) == nil {
		x.Refuse(&message.Refusal{Status: 401, Reason: "auth_required"})
		return nil
	}
	return &Identity{User: "ada", Fields: []IdentityField{{"X-User", "ada"}}}
}

func (k known) hidesCredentials() bool { return k.hides }

func entryOf(a authenticator) *authEntry {
	e := new(authEntry)
	e.current.Store(&a)
	return e
}

// The endpoint gets who sent the request, and credentials only if they are not for weir.
func TestAuthTellsTheEndpoint(t *testing.T) {
	for _, hides := range []bool{true, false} {
		f := &auth{entry: entryOf(known{hides})}
		x := newExchange("GET", "/")
		if !f.Answer(x) || x.answer != "401 auth_required" {
			t.Errorf("without credentials: %q", x.answer)
		}
		x = newExchange("GET", "/")
		x.req.AddField("authorization", "a b")
		if f.Answer(x) {
			t.Errorf("with credentials: %q", x.answer)
		}
		f.EditRequest(x)
		if got := string(x.req.GetName("x-user")); got != "ada" || x.user != "ada" || (x.req.GetName("authorization") == nil) != hides {
			t.Errorf("the endpoint gets the user %q, the log %q, and the credentials %q", got, x.user, x.req.GetName("authorization"))
		}
	}
}

// The headers that entries of auth set are dropped in every spelling.
func TestDropAsserted(t *testing.T) {
	f := &Forwarding{asserted: message.NewNames([]string{"X-User", "X-Forwarded-User"})}
	var h message.Head
	for _, name := range []string{"X-User", "x_user", "X.USER", "X-Forwarded_User", "X-Users", "X-User-Id"} {
		h.AddField(name, "a")
	}
	f.DropAsserted(&h)
	left := 0
	for i := range h.Fields {
		if !h.Fields[i].Dropped {
			left++
		}
	}
	if left != 2 || h.GetName("x-users") == nil || h.GetName("x-user-id") == nil {
		t.Errorf("%d headers are left", left)
	}
}

// With satisfy: any, an allowed address or a user is enough, and a denied address is refused.
func TestSatisfyAny(t *testing.T) {
	networks := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	shared := &SharedPlan{auth: map[string]*plannedAuth{"staff": {entry: entryOf(known{true})}}}
	for _, satisfy := range []config.Satisfy{config.SatisfyAny, config.SatisfyAll, ""} {
		c := Compile(&config.Route{Backend: "b", Auth: "staff", Satisfy: satisfy,
			Clients: &config.Clients{Allow: networks("203.0.113.0/24"), Deny: networks("203.0.113.66/32")}}, shared)
		f := func(client, credentials, any, all string) {
			t.Helper()
			x := newExchange("GET", "/")
			x.client = netip.MustParseAddrPort(client)
			if credentials != "" {
				x.req.AddField("Authorization", credentials)
			}
			want := all
			if satisfy == config.SatisfyAny {
				want = any
			}
			if c.Answer(x); x.answer != want {
				t.Errorf("%q: %s with %q gets %q, want %q", satisfy, client, credentials, x.answer, want)
			}
			c.EditRequest(x)
			if x.req.Get(message.Authorization) != nil {
				t.Errorf("%q: the endpoint gets the credentials", satisfy)
			}
		}
		f("203.0.113.1:1", "", "", "401 auth_required")
		f("203.0.113.1:1", "a", "", "")
		f("192.0.2.1:1", "a", "", "403 client_denied")
		f("192.0.2.1:1", "", "401 auth_required", "403 client_denied")
		f("203.0.113.66:1", "a", "403 client_denied", "403 client_denied")
	}
}
