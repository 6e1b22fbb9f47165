package kube

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
)

// redirects reports whether weir redirects requests without TLS to https.
// Paths of ACME challenges are not redirected, because the authority asks for them before
// there is a certificate.
func (v *conversion) redirects(c *claim.Claim) bool {
	asked := v.asked[c.Owner].Redirects
	switch {
	case v.fileProtection(c.Host).below, v.protection(c.Host).below && !claim.IsChallenge(c.Path):
		return true
	case claim.IsChallenge(c.Path) || asked.HTTPS == annotation.Off && !asked.Force:
		return false
	case asked.Force:
		return true
	}
	return (v.settings.HTTPSRedirect || asked.HTTPS == annotation.On) && len(v.secure) > 0 && v.decision.IsOverTLS(c)
}

// httpsPort is the port that clients use for https.
func (v *conversion) httpsPort() int {
	for _, l := range v.secure {
		if l.PublicPort != 0 {
			return l.PublicPort
		}
	}
	return 443
}

// tlsHosts are the hosts for which the Ingress has TLS. An entry without hosts, and
// an annotation of Traefik, apply to all hosts.
func tlsHosts(o *networkingv1.Ingress) map[string]bool {
	all := map[string]bool{"": traefikTLS(o.Annotations)}
	for n := range o.Spec.TLS {
		hosts := o.Spec.TLS[n].Hosts
		all[""] = all[""] || len(hosts) == 0
		for _, h := range hosts {
			if host, err := config.ParseHost(h); err == nil {
				all[host] = true
			}
		}
	}
	return all
}

// traefikTLS reports whether Traefik would serve the Ingress only over TLS: because
// annotations set TLS or one of its options, or name only entry points for https.
func traefikTLS(annotations map[string]string) bool {
	for name, value := range annotations {
		name, ours := strings.CutPrefix(name, annotation.Traefik)
		switch {
		case !ours:
		case name == "router.tls" && strings.EqualFold(strings.TrimSpace(value), "true"):
			return true
		case strings.HasPrefix(name, "router.tls.") && strings.TrimSpace(value) != "":
			return true
		case (name == "router.entrypoints" || name == "frontend-entry-points") && onlyHTTPS(value):
			return true
		}
	}
	return false
}

// onlyHTTPS reports whether a list has entry points for https, and no others.
func onlyHTTPS(list string) bool {
	found := false
	for name := range strings.SplitSeq(list, ",") {
		switch strings.TrimSpace(name) {
		case "":
		case "websecure", "https":
			found = true
		default:
			return false
		}
	}
	return found
}
