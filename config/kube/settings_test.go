package kube

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/annotation"
)

// A new value of an annotation that sets something is a change of the Ingress, although the
// ratings stay the same.
func TestSettingsChangeAnIngress(t *testing.T) {
	with := func(name, value string) *networkingv1.Ingress {
		return &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotation.Nginx + name: value}}}
	}
	for _, one := range []struct {
		name, old, now string
		alike          bool
	}{
		{"proxy-body-size", "1m", "2m", false},
		{"proxy-body-size", "1m", "1024k", true},
		{"proxy-read-timeout", "60", "3600", false},
		{"proxy-next-upstream-tries", "2", "3", false},
		{"allowlist-source-range", "10.0.0.0/8", "11.0.0.0/8", false},
		{"rewrite-target", "/$1", "/$2", false},
		{"ssl-passthrough", "true", "false", false},
		{"default-backend", "a", "b", false},
		{"upstream-hash-by", "$uri", "$host", false},
		{"load-balance", "round_robin", "ewma", false},
		{"service-upstream", "true", "false", false},
		{"server-alias", "b.example", "c.example", false},
		{"affinity", "cookie", "none", false},
		{"session-cookie-name", "a", "b", false},
		{"canary", "true", "false", false},
		{"canary-weight", "1", "2", false},
		{"canary-by-header-pattern", "a", "b", false},
		{"permanent-redirect", "https://a.example", "https://b.example", false},
		{"ssl-redirect", "false", "true", false},
		{"use-regex", "false", "true", false},
		{"use-regex", "1", "true", true},
		{"denylist-source-range", "10.0.0.0/8", "10.0.0.0/9", false},
	} {
		if got := new(Source).alike(with(one.name, one.old), with(one.name, one.now)); got != one.alike {
			t.Errorf("%s: %s and %s are alike: %v", one.name, one.old, one.now, got)
		}
	}
}
