package config

import "testing"

func TestLessGuarded(t *testing.T) {
	f := func(r, than Route, want bool) {
		t.Helper()
		if got := r.LessGuarded(&than); got != want {
			t.Errorf("%+v is less guarded than %+v: %t", r, than, got)
		}
	}
	open, small, large := Route{Backend: "a"}, Route{Backend: "a", MaxBody: 1}, Route{Backend: "a", MaxBody: 2}
	f(open, open, false)
	f(open, small, true)
	f(large, small, true)
	f(small, small, false)
	f(small, large, false)
	f(small, open, false)
	f(Route{Redirect: &Redirect{}}, small, false)
	f(Route{Backend: "a", Redirect: &Redirect{}}, small, true)
	f(Route{Closure: &Closure{}}, small, false)
	staff, guests := Route{Backend: "a", Auth: "staff"}, Route{Backend: "a", Auth: "guests"}
	f(open, staff, true)
	f(guests, staff, true)
	f(staff, staff, false)
	f(staff, open, false)
	f(staff, small, true)
	inner, outer := Route{Backend: "a", Clients: clientsOf("192.0.2.0/24", "")}, Route{Backend: "a", Clients: clientsOf("192.0.0.0/16", "")}
	f(open, inner, true)
	f(outer, inner, true)
	f(inner, outer, false)
	f(inner, open, false)
	f(inner, small, true)
	f(Route{Redirect: &Redirect{}}, inner, false)
	limited, other := Route{Backend: "a", RateLimit: "a"}, Route{Backend: "a", RateLimit: "b"}
	f(open, limited, true)
	f(other, limited, true)
	f(limited, limited, false)
	f(limited, open, false)
	if !limited.Guarded() {
		t.Error("rate_limit is a guard")
	}
	few, more := Route{Backend: "a", InFlight: &InFlight{Most: 1}}, Route{Backend: "a", InFlight: &InFlight{Most: 2}}
	f(open, few, true)
	f(more, few, true)
	f(few, more, false)
	f(few, open, false)
	if !few.Guarded() {
		t.Error("in_flight is a guard")
	}
	if !inner.Guarded() {
		t.Error("clients is a guard")
	}
	any := Route{Backend: "a", Auth: "staff", Clients: inner.Clients, Satisfy: SatisfyAny}
	all := Route{Backend: "a", Auth: "staff", Clients: inner.Clients}
	f(any, all, true)
	f(all, any, false)
	f(any, any, false)
	f(inner, any, false)
	f(any, inner, true)
	f(any, staff, true)
	f(open, any, true)
	f(any, small, true)
	if open.Guarded() || !staff.Guarded() || !small.Guarded() {
		t.Error("max_body is a guard")
	}
}

func TestDropGuards(t *testing.T) {
	r := Route{Redirect: &Redirect{}, MaxBody: 1, Clients: clientsOf("192.0.2.0/24", ""), Auth: "staff", Satisfy: SatisfyAny, RateLimit: "a",
		InFlight: &InFlight{Most: 1}, Limits: &ObjectLimits{InFlight: 1}}
	if r.DropGuards(); r.Guarded() || r.Satisfy != "" {
		t.Errorf("guards are left: %+v", r)
	}
}
