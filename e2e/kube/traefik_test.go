//go:build linux

package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestTraefikAnnotations serves Ingresses and Services with Traefik's annotations for sticky sessions, the scheme, the
// Host, the path matcher and priorities.
func TestTraefikAnnotations(t *testing.T) {
	s := newStage(t)
	service := func(name, annotations, port string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Service, metadata: {name: %s, annotations: {%s}}, spec: {selector: {app: a}, ports: [{port: 80, targetPort: %s}]}}",
			name, strings.ReplaceAll(annotations, "service.", "traefik.ingress.kubernetes.io/service."), port)
	}
	rules := func(name, annotations, paths string) string {
		return fmt.Sprintf(`{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: %s, annotations: {%s}}, spec: {ingressClassName: "@stage", rules: [{host: web.example, http: {paths: [%s]}}]}}`,
			name, strings.ReplaceAll(annotations, "router.", "traefik.ingress.kubernetes.io/router."), paths)
	}
	path := func(path, kind, service string) string {
		return fmt.Sprintf("{path: %s, pathType: %s, backend: {service: {name: %s, port: {number: 80}}}}", path, kind, service)
	}
	s.apply(deployment("a", 3), service("sticky", `service.sticky.cookie: "true", service.sticky.cookie.name: shop`, "3000"), service("h2c", "service.serversscheme: h2c", "3001"),
		service("tls", `service.serversscheme: https, service.passhostheader: "false"`, "3443"),
		rules("web", "", strings.Join([]string{path("/sticky", "Prefix", "sticky"), path("/h2c", "Prefix", "h2c"), path("/tls", "Prefix", "tls"), path("/tls/x", "Prefix", "gone")}, ", ")),
		rules("exact", "router.pathmatcher: Path", path("/exact", "ImplementationSpecific", "h2c")),
		rules("first", `router.priority: "1000"`, path("/tls", "Prefix", "tls")))
	s.rolledOut("a")
	w := s.weir("")
	w.want("http://web.example/h2c", "HTTP/2", func(a answer) bool { return a.Status == 200 && a.Proto == "HTTP/2.0" && a.Host == "web.example" })
	w.want("http://web.example/tls", "its own Host over TLS", func(a answer) bool { return a.Status == 200 && a.TLS && a.Host == "tls."+s.name+".svc" })
	w.wantStatus("http://web.example/tls/x", 200) // the priority of /tls goes before the longer path, whose Service does not exist
	w.wantStatus("http://web.example/exact", 200)
	w.wantStatus("http://web.example/exact/x", 404)

	c := client(w.address, false)
	defer c.CloseIdleConnections()
	ask := func(cookie *http.Cookie) (pod string, set *http.Cookie, err error) {
		r, err := http.NewRequest("GET", "http://web.example/sticky", nil)
		if err != nil {
			return "", nil, err
		}
		if cookie != nil {
			r.AddCookie(cookie)
		}
		resp, err := c.Do(r)
		if err != nil {
			return "", nil, err
		}
		defer resp.Body.Close()
		var a answer
		if err := a.take(resp); err != nil || a.Status != 200 {
			return "", nil, errors.Join(err, errors.New(a.String()))
		}
		for _, one := range resp.Cookies() {
			if one.Name == "shop" {
				set = one
			}
		}
		return a.Pod, set, nil
	}
	pod, cookie, err := ask(nil)
	if err != nil || cookie == nil || !cookie.HttpOnly || cookie.Path != "/" {
		t.Fatalf("the first response has the cookie %+v, %v", cookie, err)
	}
	for range 20 {
		again, set, err := ask(cookie)
		if err != nil || again != pod || set != nil {
			t.Fatalf("with the cookie of %s the Pod is %s, and the cookie %+v, %v", pod, again, set, err)
		}
	}
}
