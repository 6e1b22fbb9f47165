package kube

import (
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/claim"
)

// pendingBackend has no endpoints, so its requests get 503.
const pendingBackend = "kubernetes/pending"

// Pending is the Routing until weir knows the objects of the cluster. Requests that
// the file does not serve get 503; clients would remember a 404.
func Pending(file *config.Config) *Routing {
	v := newConversion(file)
	r := &Routing{Backends: []*Backend{{Backend: config.NewBackend(pendingBackend)}}}
	r.Backends[0].Closed = true
	everything := claim.Match{Path: everyPath}
	for _, l := range slices.Concat(v.plain, v.secure) {
		t, itself := v.tlsOn(l.Name, "")
		if _, taken := v.seen.routes[matchOn{l.Name, everything}]; taken || t.raw() && itself {
			continue
		}
		policy := t.policy
		if l.Protocol == config.ProtocolHTTP {
			policy = config.DefaultTLSPolicy
		}
		r.Routes = append(r.Routes, &config.Route{Name: "kubernetes/" + l.Name, Listeners: []string{l.Name},
			TLS: config.TLSTerminate, TLSPolicy: policy, Backend: pendingBackend})
	}
	return r
}
