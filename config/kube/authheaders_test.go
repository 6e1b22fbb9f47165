package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
)

// Tenants cannot make one request need gigabytes: the variables of a ConfigMap of auth-proxy-set-headers are counted
// together.
func TestAuthHeadersOfManyVariables(t *testing.T) {
	for n, want := range map[int]string{16: "", 17: "more than 32 variables"} {
		m := &corev1.ConfigMap{Data: map[string]string{}}
		for i := range n {
			m.Data[fmt.Sprint("X-", i)] = "$request_uri $http_cookie"
		}
		all, err := authHeadersOf(m, config.ObjectName{Namespace: "shop", Name: "web"})
		if text := fmt.Sprint(err); want == "" && (err != nil || len(all) != n) || want != "" && !strings.Contains(text, want) {
			t.Errorf("%d HTTP headers with two variables each: %d, %v", n, len(all), err)
		}
	}
}
