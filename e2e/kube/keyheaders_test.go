//go:build linux

package kube

import (
	"errors"
	"strings"
	"testing"
)

// settingsOf puts the ConfigMap of ingress-nginx's controller into the place where the manifests let weir read it.
func (s *stage) settingsOf(data map[string]string) {
	s.Helper()
	s.cluster.kubectl("", "create", "namespace", "ingress-nginx") // it may exist
	if _, err := s.cluster.kubectl(s.fill(configMap("ingress-nginx-controller", data)), "apply", "--namespace=ingress-nginx", "-f", "-"); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		s.cluster.kubectl("", "delete", "configmap", "ingress-nginx-controller", "--namespace=ingress-nginx", "--ignore-not-found")
	})
}

// underSettings is the section kubernetes of a weir that reads this ConfigMap.
const underSettings = "kubernetes: {kubeconfig: '@kubeconfig', class: '@stage', lease: weir/@stage, ingress_nginx: {config_map: ingress-nginx/ingress-nginx-controller}}\n"

// TestHeadersOfKeys: a change of a ConfigMap that proxy-set-headers or add-headers names takes effect. Its deletion
// changes nothing before the next start of weir, and after that the Ingress is closed.
func TestHeadersOfKeys(t *testing.T) {
	const url = "http://keys.example/"
	s := newStage(t)
	s.settingsOf(map[string]string{"proxy-set-headers": "@stage/requests", "add-headers": "@stage/responses"})
	s.apply(deployment("a", 1), ingress("web", "keys.example", "/", "a", ""),
		configMap("requests", map[string]string{"X-By": "$ingress_name of $host"}), configMap("responses", map[string]string{"X-Frame-Options": "DENY"}))
	s.rolledOut("a")
	w := s.weir(underSettings)
	by := func(w *weir, want string) {
		t.Helper()
		w.want(url, "X-By: "+want, func(a answer) bool { return a.Status == 200 && a.Headers.Get("X-By") == want })
	}
	by(w, "web of keys.example")
	framed := func(want string) {
		t.Helper()
		eventually(t, "X-Frame-Options becomes "+want, func() error {
			c := client(w.address, false)
			defer c.CloseIdleConnections()
			resp, err := c.Get(url)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if got := resp.Header.Get("X-Frame-Options"); got != want {
				return errors.New("it is " + got)
			}
			return nil
		})
	}
	framed("DENY")
	s.apply(configMap("requests", map[string]string{"X-By": "$request_method"}), configMap("responses", map[string]string{"X-Frame-Options": "SAMEORIGIN"}))
	by(w, "GET")
	framed("SAMEORIGIN")

	s.apply(configMap("requests", map[string]string{"X-By": "$nothing"}))
	w.wantStatus(url, 503)
	if message := s.wantEvent("Ingress", "web", "AccessControl"); !strings.Contains(message, "has a value of X-By with the variable $nothing") {
		t.Errorf("the event says %q", message)
	}
	s.apply(configMap("requests", map[string]string{"X-By": "weir"}))
	by(w, "weir")

	s.delete("configmap", "requests")
	s.apply(ingress("next", "next.example", "/", "a", "")) // a conversion after the deletion
	w.want("http://next.example/", "X-By: weir", func(a answer) bool { return a.Status == 200 && a.Headers.Get("X-By") == "weir" })
	by(w, "weir")
	second := s.weir(underSettings)
	second.wantStatus(url, 503)
	s.apply(configMap("requests", map[string]string{"X-By": "again"}))
	by(w, "again")
	by(second, "again")
}
