package backend

import (
	"maps"
	"strings"
	"testing"
	"unsafe"

	"github.com/weirproxy/weir/config"
)

func (w *world) plan(backends ...config.Backend) *Plan {
	w.t.Helper()
	p, err := w.set.Plan(listOf(backends...), NodeInfo{Name: "node-a"}, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// A plan changes nothing before Commit. After Commit, its backends are in use.
func TestPlanChangesNothing(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"), settings("old", "10.0.0.2:80"))
	app := w.set.Backend("app")
	w.plan(settings("app", "10.0.0.8:80")) // this plan is dropped
	p := w.plan(settings("app", "10.0.0.9:80"), settings("new", "10.0.0.3:80"))
	wantReady(t, app, "10.0.0.1:80")
	if w.set.Backend("new") != nil || w.set.Backend("old") == nil {
		t.Error("the plan is in effect before Commit")
	}
	fresh, _ := p.Backends().Get("new")
	if kept, _ := p.Backends().Get("app"); kept != app || fresh == nil || p.Backends().Len() != 2 {
		t.Errorf("the plan has %v", maps.Collect(p.Backends().All()))
	}
	if err := p.Commit(); err != nil {
		t.Fatal(err)
	}
	wantReady(t, app, "10.0.0.9:80")
	wantReady(t, fresh, "10.0.0.3:80")
	if w.set.Backend("new") != fresh || w.set.Backend("old") != nil {
		t.Error("the plan is not in effect after Commit")
	}
}

// An update of endpoints between Plan and Commit is in effect after Commit, whether the
// connections to the backend change or not.
func TestEndpointsBesideAPlan(t *testing.T) {
	f := func(name string, change func(*config.Backend)) {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			before := settings("app", "10.0.0.1:80")
			before.Protocol, before.TLS.InsecureSkipVerify = config.ProtocolHTTPS, true
			w.update(before)
			after := before
			change(&after)
			p := w.plan(after)
			newer := []config.Endpoint{{Address: "10.0.0.2:80", Weight: 1}}
			if err := w.set.UpdateEndpoints("app", newer); err != nil {
				t.Fatal(err)
			}
			kept := w.set.Backend("app").dialSettings()
			after.Endpoints = newer
			p.Renew(listOf(after, settings("other")))
			if err := p.Commit(); err != nil {
				t.Fatal(err)
			}
			wantReady(t, w.set.Backend("app"), "10.0.0.2:80")
			d := w.set.Backend("app").dialSettings()
			if !d.knows(newer) {
				t.Error("the new endpoint has no TLS configuration")
			}
			if changed := after.MaxIdle != before.MaxIdle; !changed && d != kept {
				t.Error("connections are made in another way, though nothing changed")
			}
		})
	}
	f("equal", func(*config.Backend) {})
	f("changed", func(c *config.Backend) { c.MaxIdle++ })
}

// A plan that cannot take effect changes nothing.
func TestOvertakenPlan(t *testing.T) {
	w := newWorld(t, Options{})
	w.update(settings("app", "10.0.0.1:80"))
	f := func(what, want string, spoil func(*Plan)) {
		t.Helper()
		p := w.plan(settings("app", "10.0.0.9:80"), settings("new", "10.0.0.3:80"))
		spoil(p)
		if err := p.Commit(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %s", what, err, want)
		}
		wantReady(t, w.set.Backend("app"), "10.0.0.1:80")
		if w.set.Backend("new") != nil {
			t.Errorf("%s: it is in effect", what)
		}
	}
	f("another plan", "other backends took effect", func(*Plan) { w.update(settings("app", "10.0.0.1:80")) })
	f("an invalid endpoint", `backend "app": endpoint "x"`, func(p *Plan) {
		p.Renew(listOf(settings("app", "x"), settings("new", "10.0.0.3:80")))
	})
	if _, err := w.set.Update(listOf(settings("app", "10.0.0.1:80")), NodeInfo{Name: "node-a"}); err != nil {
		t.Error(err)
	}
}

// A backend shares its settings with the configuration. Endpoints that come later change a copy.
func TestSettingsAreShared(t *testing.T) {
	w := newWorld(t, Options{})
	all := listOf(settings("app", "10.0.0.1:80"), settings("api", "10.0.0.2:80"))
	node := NodeInfo{Name: "node-a"}
	p, err := w.set.Plan(all, node, nil)
	if err != nil {
		t.Fatal(err)
	}
	later := settings("api", "10.0.0.3:80")
	p.Renew([]*config.Backend{all[0], &later})
	if err := p.Commit(); err != nil {
		t.Fatal(err)
	}
	if w.set.Backend("app").Settings() != all[0] {
		t.Error("the settings are a copy")
	}
	b := w.set.Backend("app")
	if e := b.endpoints[0]; e.cfg != &all[0].Endpoints[0] || e.dial.Load() != b.dial || unsafe.StringData(e.address) != unsafe.StringData(e.cfg.Address) {
		t.Error("an endpoint copied its settings, its address or the settings of its connections")
	}
	if all[1].Endpoints[0].Address != "10.0.0.2:80" || w.set.Backend("api").Settings().Endpoints[0].Address != "10.0.0.3:80" {
		t.Error("later endpoints changed the configuration, or were ignored")
	}
}
