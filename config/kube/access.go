package kube

import (
	"slices"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
)

// nginxPrefix is what ingress-nginx's annotations begin with.
const nginxPrefix = "nginx.ingress.kubernetes.io/"

// annotationCanary is ingress-nginx's: the Ingress is for a share of what another one has.
const annotationCanary = nginxPrefix + "canary"

// isCanary says whether the Ingress is to have a share alone. To weir it would
// be one like any other, and have everything where it is the older.
func isCanary(i *networkingv1.Ingress) bool {
	is, err := strconv.ParseBool(strings.TrimSpace(i.Annotations[annotationCanary]))
	return err == nil && is
}

// leaveOut says whether the Ingress, one of ours, is not to be served at all.
func (v *conversion) leaveOut(i *networkingv1.Ingress) bool {
	if !isCanary(i) {
		return false
	}
	v.event(reference("networking.k8s.io/v1", "Ingress", &i.ObjectMeta), ReasonCanary,
		"The annotation %s makes this a canary, and weir gives no share of requests to one yet; it is left out, and the main Ingress has all of them.", annotationCanary)
	return true
}

// guards are the annotations that keep clients out at ingress-nginx. weir does
// not do what they ask for, so nobody may come in where they are.
func guards(i *networkingv1.Ingress) (names []string) {
	for name, value := range i.Annotations {
		if short, ok := strings.CutPrefix(name, nginxPrefix); ok && keepsOut(short, strings.TrimSpace(value)) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func keepsOut(name, value string) bool {
	switch name {
	case "auth-tls-verify-client":
		return !strings.EqualFold(value, "off")
	case "auth-tls-pass-certificate-to-upstream":
		return !strings.EqualFold(value, "false")
	case "whitelist-source-range", "allowlist-source-range":
		return !isEverybody(value)
	case "denylist-source-range":
		return true
	}
	return strings.HasPrefix(name, "auth-")
}

// isEverybody says whether the list has all addresses, as solvers of cert-manager have it.
func isEverybody(networks string) bool {
	all := strings.Split(strings.ReplaceAll(networks, " ", ""), ",")
	return slices.Contains(all, "0.0.0.0/0") && slices.Contains(all, "::/0")
}

// aboutGuards tells that the Ingress is refused for what it asks for.
func (v *conversion) aboutGuards(i *ingress) {
	if len(i.guards) > 0 {
		v.on(i, ReasonAccess, "Clients are to be kept out by %s, which weir does not do; its paths answer 503, or everybody would get in. Have the application or weir's configuration do it, and take this out.",
			strings.Join(i.guards, ", "))
	}
}
