package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Service without ready Pods is reported by an event of the Ingress, in the log, and by a metric that is 0.
func TestNoEndpointsAreTold(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web")
	c.emptyAfter = 50 * time.Millisecond
	c.load(beside)
	c.untilEndpoints("192.0.2.1:8080")
	event := func(want bool) {
		t.Helper()
		eventually(t, fmt.Sprintf("an event of the Ingress says so: %t", want), func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			r := c.told[len(c.told)-1]
			for _, e := range r.Events {
				if e.Reason == "NoEndpoints" {
					if e.Object.Kind != "Ingress" || e.Object.Name != "shop" || !strings.HasPrefix(e.Message, "The Service default/shop has no ready endpoint for port 80,") {
						t.Fatalf("the event is %+v", e)
					}
					if !want {
						return errors.New("it is there")
					}
					return nil
				}
			}
			if want {
				return fmt.Errorf("there is %v", r.Events)
			}
			return nil
		})
	}
	metric := func(want string) {
		t.Helper()
		eventually(t, "the metric is "+want, func() error {
			if line := `weir_backend_endpoints_ready{backend="default/shop:80"} ` + want; !strings.Contains(c.page("/metrics"), line+"\n") {
				return errors.New("it is not")
			}
			return nil
		})
	}
	metric("1")
	c.put(pods())
	c.untilEndpoints()
	metric("0")
	event(true)
	if n := c.logged("a backend has no working endpoint"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
	if text := c.page("/kubernetes"); !strings.Contains(text, "NoEndpoints") {
		t.Errorf("the admin page has %s", text)
	}
	c.put(pods("192.0.2.2"))
	metric("1")
	event(false)
	if n := c.logged("a backend has a working endpoint again"); n != 1 {
		t.Errorf("its end was logged %d times", n)
	}
	c.remove(shop) // no event follows the deletion
	c.until("shop.example", "/", 404)
}

// An application that restarts its only Pod causes no event.
func TestShortGapIsNoEvent(t *testing.T) {
	c := newClustered(t, shop+"---\n"+pods("192.0.2.1"), "web")
	c.emptyAfter = time.Hour
	c.load(beside)
	c.untilEndpoints("192.0.2.1:8080")
	before, _ := c.times()
	c.put(pods())
	eventually(t, "weir has noticed it", func() error {
		if n, _ := c.times(); n == before {
			return errors.New("not yet")
		}
		return nil
	})
	if text := c.page("/kubernetes"); strings.Contains(text, "NoEndpoints") {
		t.Errorf("the admin page has %s", text)
	}
}

// The log names the annotation that closes a path, and a closed path is no outage.
func TestClosedPathsSayWhy(t *testing.T) {
	guarded := strings.Replace(shop, "metadata: {name: shop}", "metadata: {name: shop, annotations: {nginx.ingress.kubernetes.io/enable-modsecurity: 'true'}}", 1)
	pattern := strings.ReplaceAll(strings.Replace(strings.Split(shop, "---")[0], "path: /,", "path: '/v[0-9]+',", 1), "Prefix", "ImplementationSpecific")
	pattern = strings.NewReplacer("name: shop}, spec", "name: blog}, spec", "shop.example", "blog.example").Replace(pattern)
	log := filepath.Join(t.TempDir(), "access.log")
	c := newClustered(t, guarded+"---\n"+pattern, "web")
	c.load(beside + "access_log: {path: '" + log + "'}\n")
	c.untilReady(true) // until then every request gets 503
	c.until("shop.example", "/", 503)
	c.until("blog.example", "/v1", 503)
	metrics := c.page("/metrics")
	for _, want := range []string{
		`weir_http_generated_responses_total{backend="default/refused",host="shop.example",ingress="shop",namespace="default",reason="closed_by_annotation",route="default/shop/shop.example/"}`,
		`weir_http_generated_responses_total{backend="default/refused",host="blog.example",ingress="blog",namespace="default",reason="closed_path",route="default/blog/blog.example/v"}`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(metrics, `weir_backend_endpoints_ready{backend="default/refused"}`) || c.logged("a backend has no working endpoint") != 0 {
		t.Error("closed paths count as an outage")
	}
	for _, want := range []string{
		`the path is closed because weir does not support nginx.ingress.kubernetes.io/enable-modsecurity of the Ingress default/shop, which may restrict access`,
		`the path is closed because the path \"/v[0-9]+\" of the Ingress default/blog looks like a regular expression`,
	} {
		eventually(t, "the access log says "+want, func() error {
			if text, _ := os.ReadFile(log); !strings.Contains(string(text), want) {
				return fmt.Errorf("it says %s", text)
			}
			return nil
		})
	}
}
