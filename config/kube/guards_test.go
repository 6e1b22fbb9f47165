package kube

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// showGuards shows the timeouts, guards and headers of a route.
func showGuards(r *config.Route) string {
	var b strings.Builder
	if t := r.Timeouts; t != nil {
		fmt.Fprintf(&b, " timeouts connect %v head %v body %v send %v tunnel %v", t.Connect, t.ResponseHead, t.BodyIdle, t.Send, r.TunnelIdle)
	}
	if t := r.Retries; t != nil {
		fmt.Fprintf(&b, " retries %d %v within %v non_idempotent %v", t.Attempts, t.When, t.Within, t.NonIdempotent)
	}
	if r.Auth != "" {
		fmt.Fprintf(&b, " auth %q", r.Auth)
		if r.Satisfy == config.SatisfyAny {
			b.WriteString(" or clients")
		}
	}
	if l := r.Limits; l != nil {
		fmt.Fprintf(&b, " limits %+v", *l)
	}
	if len(r.Errors) > 0 {
		fmt.Fprintf(&b, " errors %+v", r.Errors)
	}
	if s := r.Reverse; s != nil {
		fmt.Fprintf(&b, " reverse %+v", *s)
	}
	if r.Unlogged {
		b.WriteString(" unlogged")
	}
	if r.Compress {
		b.WriteString(" compress")
	}
	if s := r.Script; s != nil {
		fmt.Fprintf(&b, " script of %s/%s %q %q refuses %v", s.Namespace, s.Object, s.Host, s.Location, s.Refuses)
		if s.Service+s.At.Value != "" {
			fmt.Fprintf(&b, " for %s:%s %s at %v", s.Service, s.Port, s.Path, s.At)
		}
	}
	if s := r.Respond; s != nil {
		fmt.Fprintf(&b, " responds %d", s.Status)
	}
	if c := r.CORS; c != nil {
		fmt.Fprintf(&b, " cors %+v", *c)
	}
	return b.String()
}

// showAuth shows the entries of auth that objects ask for.
func showAuth(line func(string, ...any), r *Routing) {
	for _, a := range r.Auth {
		switch {
		case a.Subrequest != nil:
			line("auth %q: %+v", a.Name, *a.Subrequest)
		case a.Basic != nil:
			line("auth %q: %s, realm %q: %q", a.Name, a.Basic.Object, a.Basic.Realm, string(a.Basic.Users))
		}
	}
}

// A Secret of users takes effect when it changes, also if it comes after its Ingress.
func TestSecretOfUsersChanges(t *testing.T) {
	const ingress = `{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: web, annotations: {nginx.ingress.kubernetes.io/auth-type: basic, nginx.ingress.kubernetes.io/auth-secret: users}}, spec: {ingressClassName: weir, rules: [{host: a.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}
`
	users := func(user string) string {
		return `{apiVersion: v1, kind: Secret, metadata: {name: users}, stringData: {auth: "` + user + `:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", note: unused}}`
	}
	file := "auth: {jwt: {jwt: {issuer: a, audience: [b], keys: 'https://a.example/keys'}}}\n"
	observe(t, plainConfig+file, ingress, func(t *testing.T, w *watched) {
		f := func(want string) *Routing {
			t.Helper()
			r := w.one(t).Routing
			if r == nil {
				t.Fatal("the change has no effect")
			}
			if merged := r.Merge(w.converter.File, nil); want == "" {
				if len(merged.Auth) != 1 || r.Routes[0].Closure == nil {
					t.Errorf("without the Secret it has %+v and %+v", merged.Auth, r.Routes[0])
				}
			} else if len(merged.Auth) != 2 || merged.Auth[1].Name != r.Routes[0].Auth || !strings.HasPrefix(string(merged.Auth[1].Basic.Users), want) {
				t.Errorf("it has %+v and %+v, want %s", merged.Auth, r.Routes[0], want)
			}
			return r
		}
		f("")
		w.put(users("ada"))
		f("ada:")
		w.put(users("bob"))
		before := f("bob:")
		w.put(strings.ReplaceAll(strings.ReplaceAll(ingress, "name: web", "name: other"), "a.example", "b.example"))
		after := f("bob:")
		if a, b := before.Merge(w.converter.File, nil).Auth, after.Merge(w.converter.File, nil).Auth; &a[0] != &b[0] {
			t.Error("the entries of auth are new, although they did not change: weir would read files again")
		}
		w.put(strings.ReplaceAll(users("bob"), "unused", "changed"))
		if told := w.next(); len(told) != 0 {
			t.Errorf("a key that weir does not use is a change: %+v", told)
		}
		w.remove(users("bob"))
		f("")
	})
}
