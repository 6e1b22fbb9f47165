package kube

import (
	"slices"

	"github.com/weirproxy/weir/config"
)

// pendingBackend has no endpoints: who is sent there gets 503.
const pendingBackend = "kubernetes/pending"

// Pending is what stands in for a cluster's objects until they are known: what
// the file has nothing for is answered 503, for 404 would be remembered.
func Pending(file *config.Config) *Routing {
	v := newConversion(file, &Objects{})
	r := &Routing{Backends: []Backend{{Backend: config.NewBackend(pendingBackend)}}}
	everything := claim{"", everyPath}
	for _, l := range slices.Concat(v.plain, v.secure) {
		t, itself := v.tlsOn(l.Name, "")
		if _, taken := v.seen.claims[fileClaim{l.Name, everything}]; taken || t.passthrough && itself {
			continue
		}
		policy := t.policy
		if l.Protocol == config.ProtocolHTTP {
			policy = config.DefaultTLSPolicy
		}
		r.Routes = append(r.Routes, config.Route{Name: "kubernetes/" + l.Name, Listeners: []string{l.Name},
			TLS: config.TLSTerminate, TLSPolicy: policy, Backend: pendingBackend})
	}
	return r
}
