//go:build linux

package kube

import (
	"fmt"
	"strings"
	"testing"
)

// annotated returns an Ingress for all paths of a host of the Service a, with annotations of
// ingress-nginx: names and values alternate.
func annotated(name, host string, annotations ...string) string {
	var all []string
	for i := 0; i+1 < len(annotations); i += 2 {
		all = append(all, fmt.Sprintf("nginx.ingress.kubernetes.io/%s: %q", annotations[i], annotations[i+1]))
	}
	return strings.Replace(ingress(name, host, "/", "a", ""), "metadata: {name: "+name+"}", "metadata: {name: "+name+", annotations: {"+strings.Join(all, ", ")+"}}", 1)
}

// TestUsersOfSecrets: a Secret of users protects an Ingress, also if it comes later, changes or goes.
func TestUsersOfSecrets(t *testing.T) {
	s := newStage(t)
	users := func(key, value string) string {
		return fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {name: users}, stringData: {%s: %q}}", key, value)
	}
	const hash = "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=" // secret
	s.apply(deployment("a", 1), annotated("web", "users.example", "auth-type", "basic", "auth-secret", "users", "auth-realm", "Staff"))
	s.rolledOut("a")
	w := s.weir("")
	w.wantStatus("http://users.example/", 503)
	if message := s.wantEvent("Ingress", "web", "AccessControl"); !strings.Contains(message, "/users, which auth-secret names, does not exist; create it") {
		t.Errorf("the event says %q", message)
	}
	s.apply(users("auth", "ada:"+hash+"\neve:abJnggxhB/yWI\n"))
	a := w.wantApp("http://ada:secret@users.example/", "a")
	if a.Headers.Get("Authorization") != "" || a.Headers.Get("X-Forwarded-User") != "" {
		t.Errorf("the Pod got %v", a.Headers)
	}
	for _, stranger := range []string{"", "ada:Secret@", "eve:secret@", "bob:secret@"} {
		w.wantStatus("http://"+stranger+"users.example/", 401)
	}
	s.wantEvent("Secret", "users", "UnusableUsers")

	s.apply(users("auth", "bob:"+hash))
	w.wantApp("http://bob:secret@users.example/", "a")
	w.wantStatus("http://ada:secret@users.example/", 401)

	s.delete("secret", "users")
	w.wantStatus("http://bob:secret@users.example/", 503)
	s.apply(users("zoe", hash))
	s.apply(annotated("web", "users.example", "auth-type", "basic", "auth-secret", "users", "auth-secret-type", "auth-map"))
	w.wantApp("http://zoe:secret@users.example/", "a")
	w.wantStatus("http://bob:secret@users.example/", 401)
}
