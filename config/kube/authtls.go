package kube

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/claim"
	"github.com/weirproxy/weir/config/kube/event"
)

// This file has the client certificates by annotations of ingress-nginx (auth-tls-*). A host has one
// TLS policy, and clients send their certificate before they name a path, so ingress-nginx applies the
// annotations of the oldest Ingress that has them to all paths of a host. weir does so within a namespace.

// crlKey is the key of a Secret with certificate revocation lists.
const crlKey = "ca.crl"

// hostCerts is how the Ingresses of a namespace treat the client certificates for a host.
type hostCerts struct {
	annotation.AuthTLS
	rules   config.ClientCert
	secret  config.ObjectName
	ca, crl []byte
}

// asks reports whether weir requests certificates from clients. h may be nil.
func (h *hostCerts) asks() bool { return h != nil && h.rules.Mode != config.CertOff }

// requires reports whether weir serves the host only to clients with a good certificate. h may be nil.
func (h *hostCerts) requires() bool { return h != nil && h.rules.Mode == config.CertRequired }

// policy is the name of the TLS policy that requests the certificates. base is the policy that the
// host would have otherwise.
func (h *hostCerts) policy(base string) string {
	name := fmt.Sprintf("auth-tls/%s/%d", h.secret, h.Depth)
	if base != config.DefaultTLSPolicy {
		name += "/" + base
	}
	return name
}

// certWish is the wish of one Ingress for the client certificates of its hosts.
type certWish struct {
	*hostCerts
	owner *claim.Owner // nil: the Ingress is a canary
	age   claim.Owner  // only the age and the name of the Ingress
	hosts []string
}

// readCerts finds the Ingress that decides about the client certificates of each host. An Ingress that is
// closed because of another annotation decides too: otherwise weir would not ask for certificates on the
// paths of other Ingresses.
func (v *conversion) readCerts(owners []*claim.Owner) {
	v.certs, v.firstNamed, v.shutCanaries = map[hostIn]*hostCerts{}, nil, nil
	wishes := v.canaryCerts(owners)
	for _, o := range owners {
		h := v.hostCerts[o]
		if h == nil {
			continue
		}
		if err := v.mayAsk(o.Hosts, h); err != nil {
			v.closeFor(o, "auth-tls-secret", err)
			continue
		}
		wishes = append(wishes, certWish{h, o, *o, o.Hosts})
	}
	if len(wishes) == 0 {
		return
	}
	v.firstNamed = map[string]*claim.Owner{}
	for _, o := range owners {
		for _, host := range o.Hosts {
			if first := v.firstNamed[host]; first == nil || compareOwners(o, first) < 0 {
				v.firstNamed[host] = o
			}
		}
	}
	slices.SortStableFunc(wishes, func(a, b certWish) int { return compareOwners(&a.age, &b.age) })
	for i := range wishes {
		for _, host := range wishes[i].hosts {
			v.wishCerts(&wishes[i], host)
		}
	}
}

// wishCerts lets the Ingress decide about a host, unless an older Ingress of its namespace does. If several
// namespaces share the host, only the namespace of the oldest Ingress may request certificates: a request
// from another namespace would change the TLS of clients of that Ingress.
func (v *conversion) wishCerts(w *certWish, host string) {
	in, first := hostIn{w.age.Name.Namespace, host}, v.firstNamed[host]
	if v.certs[in] != nil {
		return
	}
	if v.settings.HostOwnership != config.OwnedByNamespace && w.asks() && first != nil && first.Name.Namespace != in.namespace {
		if w.owner != nil {
			v.closeFor(w.owner, "auth-tls-secret", fmt.Errorf("the older %v of another namespace decides about the TLS of %s; use another host", first, claim.HostText(host)))
		}
		return
	}
	v.certs[in] = w.hostCerts
}

// canaryCerts returns the wishes of canaries. ingress-nginx applies auth-tls-* of canaries too, and serves nothing
// of a host for which it cannot.
func (v *conversion) canaryCerts(owners []*claim.Owner) (wishes []certWish) {
	seen := map[config.ObjectName]bool{}
	for _, all := range v.canaries {
		for _, k := range all {
			name := config.ObjectName{Namespace: k.of.Namespace, Name: k.of.Name}
			a := annotation.SettingsOf(k.of).AuthTLS
			unusable := refusedAuthTLS(k.of)
			if seen[name] || a.Secret == "" && unusable == nil {
				continue
			}
			seen[name] = true
			w := certWish{age: claim.Owner{Name: name, Created: k.of.CreationTimestamp.Time}}
			for host := range ruleHosts(k.of) {
				w.hosts = append(w.hosts, host)
			}
			err := unusable
			if err == nil {
				w.hostCerts, err = v.readAuthTLS(name.Namespace, a)
			}
			if err == nil {
				err = v.mayAsk(w.hosts, w.hostCerts)
			}
			if err != nil {
				v.shutCanary(k.of, w.hosts, owners, err)
				continue
			}
			wishes = append(wishes, w)
		}
	}
	return wishes
}

// refusedAuthTLS is why weir cannot do what auth-tls-* of a canary asks for, or nil.
func refusedAuthTLS(i *networkingv1.Ingress) error {
	guards, _ := annotation.Unsupported(i)
	for _, name := range guards {
		if strings.HasPrefix(name, annotation.Nginx+"auth-tls-") {
			return fmt.Errorf("weir does not support the value of %s; weir lint says what to write instead", name)
		}
	}
	return nil
}

// shutCanary closes the hosts of a canary for all Ingresses of its namespace, because weir cannot request client
// certificates for them.
func (v *conversion) shutCanary(i *networkingv1.Ingress, hosts []string, owners []*claim.Owner, why error) {
	o := &claim.Owner{Kind: ingressKind, Name: objectName(i), UID: i.UID}
	for _, other := range owners {
		for _, host := range other.Hosts {
			if other.Name.Namespace != i.Namespace || !slices.Contains(hosts, host) || slices.Contains(o.Hosts, host) {
				continue
			}
			o.Hosts = append(o.Hosts, host)
			if other.Created.After(o.Created) { // a canary gives its namespace no host
				o.Created = other.Created
			}
		}
	}
	if len(o.Hosts) == 0 {
		return // nothing serves the canary
	}
	o.Guards = guardsOf(o.Kind.Name, o.Name, []string{annotation.Nginx + "auth-tls-secret"})
	o.Guards.Why, _, _ = strings.Cut(why.Error(), ";")
	v.on(o, event.ReasonAccess, "All paths of the hosts of this canary answer 503 in this namespace, because otherwise everybody would have access: %v.", why)
	v.shutCanaries = append(v.shutCanaries, o)
}

// certsOf returns how the namespace that owns a host treats client certificates; nil: it has no annotation
// for them. If namespaces share hosts, the namespace of the oldest Ingress with the host counts.
func (v *conversion) certsOf(host string) *hostCerts {
	if len(v.certs) == 0 {
		return nil
	}
	owner := v.firstNamed[host]
	if v.settings.HostOwnership == config.OwnedByNamespace {
		owner = v.decision.HostOwner(host)
	}
	if owner == nil {
		return nil
	}
	return v.certs[hostIn{owner.Name.Namespace, host}]
}

// readAuthTLS reads the Secret of an Ingress with auth-tls-secret.
func (v *conversion) readAuthTLS(namespace string, a annotation.AuthTLS) (*hostCerts, error) {
	name := config.ObjectName{Namespace: namespace, Name: a.Secret}
	s := v.secret(name)
	if s == nil {
		return nil, unread{fmt.Errorf("the Secret %s, which auth-tls-secret names, does not exist; create it", name)}
	}
	h := &hostCerts{AuthTLS: a, rules: config.ClientCert{Mode: config.CertMode(a.Verify), Match: a.Subject, ErrorPage: a.ErrorPage, Forward: a.Forward}, secret: name, ca: s.Data[caKey], crl: s.Data[crlKey]}
	if err := v.checkAuthorities(s); err != nil {
		return nil, fmt.Errorf("the Secret %s, which auth-tls-secret names, %w", name, err)
	}
	return h, nil
}

// checkAuthorities returns why weir cannot use the CAs or the revocation lists of a Secret, or nil. The
// error follows the name of the Secret. Like look, it checks each Secret only once: many Ingresses may name
// the same Secret, and its revocation lists may be long.
func (v *conversion) checkAuthorities(s *corev1.Secret) error {
	err, known := v.authorities[s]
	if !known {
		err = checkAuthorities(s.Data[caKey], s.Data[crlKey])
		v.authorities[s] = err
	}
	return err
}

func checkAuthorities(ca, crl []byte) error {
	if len(ca) == 0 {
		return errors.New("has no key ca.crt; store the CAs there in PEM")
	}
	if _, err := config.Authorities(ca); err != nil {
		return fmt.Errorf("has a ca.crt that %w", err)
	}
	if len(crl) == 0 {
		return nil
	}
	if _, err := config.ParseRevocationLists(crl); err != nil {
		return fmt.Errorf("has a ca.crl that %w", err)
	}
	return nil
}

// mayAsk returns why weir cannot request certificates for hosts, or nil.
func (v *conversion) mayAsk(hosts []string, h *hostCerts) error {
	if !h.asks() {
		return nil
	}
	for _, host := range hosts {
		for _, l := range v.secure {
			t, itself := v.seen.on(l.Name, host)
			if t.raw() {
				continue // weir passes the TLS through, and sees no requests
			}
			base := v.certBase(t.policy)
			switch {
			case itself || base.ClientAuth != config.ClientAuthNone:
				return fmt.Errorf("weir's configuration sets the TLS of %s on listener %s; take the host out of it, or remove the annotation", claim.HostText(host), l.Name)
			case !base.SHA1 && base.MinVersion < tls.VersionTLS13 && base.MaxVersion >= tls.VersionTLS12 && v.admitsSHA1():
				return fmt.Errorf("weir's configuration has sha1_signatures, so clients could sign with SHA-1 in TLS 1.2; set min_version: \"1.3\" in the policy %s", base.Name)
			}
		}
	}
	return nil
}

// admitsSHA1 reports whether the file accepts signatures with SHA-1 anywhere.
func (v *conversion) admitsSHA1() bool {
	return slices.ContainsFunc(v.file.TLSPolicies, func(p config.TLSPolicy) bool { return p.SHA1 }) ||
		slices.ContainsFunc(v.file.Backends, func(b *config.Backend) bool { return b.TLS.SHA1 })
}

// certBase returns the policy whose versions and cipher suites a host keeps.
func (v *conversion) certBase(name string) *config.TLSPolicy {
	if p := v.policy(name); p != nil && len(p.From) == 0 {
		return p
	}
	return v.policy(config.DefaultTLSPolicy)
}

// certPolicy returns the name of the policy that requests client certificates for a host. It makes this
// policy from base, which the host would have otherwise.
func (v *conversion) certPolicy(h *hostCerts, base string) string {
	name := h.policy(base)
	if _, known := v.policies[name]; known {
		return name
	}
	made := *v.certBase(base)
	made.Name, made.Position, made.From = name, config.Position{}, nil
	made.ClientAuth, made.ClientAuthCA, made.ClientAuthPool = config.ClientAuthReport, "ca.crt of the Secret "+h.secret.String(), h.ca
	made.ClientAuthCRL, made.ClientAuthForward = nil, nil
	made.ClientAuthDepth, made.ClientAuthLists = h.Depth, h.crl
	v.policies[name] = made
	return name
}

// certRules returns how the routes of a claim treat client certificates; nil: the host has no annotation for them.
func (v *conversion) certRules(c *claim.Claim) *config.ClientCert {
	h := v.certs[hostIn{c.Owner.Name.Namespace, c.Host}]
	if h == nil || claim.IsChallenge(c.Path) {
		return nil
	}
	return &h.rules
}

func comparePolicies(a, b config.TLSPolicy) int { return cmp.Compare(a.Name, b.Name) }
