package kube

import (
	"strings"
	"testing"
	"time"
)

// Until the ConfigMap of ingress-nginx exists, the Source knows nothing: the ConfigMap may restrict access. If it is
// deleted, the last one stays in effect.
func TestControllerIsAwaited(t *testing.T) {
	text := strings.Replace(plainConfig, "kubernetes: {class: weir}", "kubernetes: {class: weir, ingress_nginx: {config_map: default/controller}}", 1)
	observe(t, text, ingressAndService, func(t *testing.T, w *watched) {
		time.Sleep(time.Minute)
		w.mu.Lock()
		changes, troubles := len(w.changes), len(w.troubles)
		w.mu.Unlock()
		if changes != 0 || troubles == 0 || w.HasSynced() {
			t.Fatalf("without the ConfigMap there are %d changes and %d troubles, synced: %v", changes, troubles, w.HasSynced())
		}
		allowed := func(want string) {
			t.Helper()
			c := w.one(t)
			if c.Routing == nil {
				t.Fatal("nothing changed")
			}
			for _, r := range c.Routing.Routes {
				got := ""
				if r.Clients != nil && len(r.Clients.Allow) == 1 {
					got = r.Clients.Allow[0].String()
				}
				if r.Redirect == nil && got != want {
					t.Errorf("%s is open to %q, want %q", r.Name, got, want)
				}
			}
		}
		w.put(`{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {whitelist-source-range: 10.0.0.0/8}}`)
		allowed("10.0.0.0/8")
		w.put(`{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {whitelist-source-range: 10.1.0.0/16}}`)
		allowed("10.1.0.0/16")
		// The same annotation as weir's own default differs from none, because the ConfigMap has another default.
		w.put(strings.Replace(ingressAndService, "metadata: {name: web}", `metadata: {name: web, annotations: {nginx.ingress.kubernetes.io/whitelist-source-range: "0.0.0.0/0,::/0"}}`, 1))
		allowed("")
		w.put(ingressAndService)
		allowed("10.1.0.0/16")
		w.remove(`{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}}`)
		w.put(strings.Replace(ingressAndService, "host: a.example, http", "host: b.example, http", 1))
		allowed("10.1.0.0/16")
	})
}

// A conversion under a ConfigMap converts only what changed, as without one.
func TestControllerKeepsParts(t *testing.T) {
	file := mustParse(t, strings.Replace(plainConfig, "kubernetes: {class: weir}", "kubernetes: {class: weir, ingress_nginx: {config_map: default/controller}}", 1))
	m := mustRead(t, ingressAndService+"---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: controller}, data: {proxy-body-size: 2m}}")
	c := Converter{File: file}
	first := c.Convert(&m.Objects)
	if again := c.Convert(&m.Objects); again != first || c.converted != 0 {
		t.Errorf("the same objects were converted again: %d Ingresses", c.converted)
	}
	other := m.Objects
	other.Controller = m.Controller.DeepCopy()
	other.Controller.Data = map[string]string{"proxy-body-size": "3m"}
	second := c.Convert(&other)
	if second == first || c.converted != 1 {
		t.Errorf("another ConfigMap converted %d Ingresses", c.converted)
	}
	limit := func(r *Routing) (n int64) {
		for _, one := range r.Routes {
			n = max(n, one.MaxBody)
		}
		return n
	}
	if a, b := limit(first), limit(second); a != 2<<20 || b != 3<<20 {
		t.Errorf("the limits are %d and %d", a, b)
	}
	changed := *file
	kubernetes := *file.Kubernetes
	kubernetes.IngressNginx = nil
	changed.Kubernetes = &kubernetes
	c.File = &changed
	if third := c.Convert(&other); limit(third) != 0 {
		t.Errorf("without the key the limit is %d", limit(third))
	}
}
