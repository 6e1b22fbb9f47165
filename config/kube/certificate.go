package kube

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// pair is the certificate and key of a Secret, checked.
type pair struct {
	names  []string // of the certificate
	covers coverage // the same
	err    error    // why weir cannot serve it; the text follows the name of the Secret
}

// The largest chain and key that weir reads. A key of 16384 bits, which no client
// supports, takes a quarter of this.
const (
	maxChain = 256 << 10
	maxKey   = 64 << 10
)

// look reads the pair in a Secret. Informers replace objects and never change
// them, so each one is read only once.
func (v *conversion) look(s *corev1.Secret) pair {
	p, known := v.pairs[s]
	if !known {
		if p, known = v.known[s]; !known {
			leaf, err := checkPair(s)
			if p.err = err; err == nil {
				p.names = namesOf(leaf)
				p.covers = coverageOf(p.names)
			}
		}
		v.pairs[s] = p
	}
	return p
}

func checkPair(s *corev1.Secret) (*x509.Certificate, error) {
	chain, key := s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]
	switch {
	case len(chain) == 0:
		return nil, fmt.Errorf("has no %s; name a Secret of type kubernetes.io/tls", corev1.TLSCertKey)
	case len(key) == 0:
		return nil, fmt.Errorf("has no %s; name a Secret of type kubernetes.io/tls", corev1.TLSPrivateKeyKey)
	case len(chain) > maxChain || len(key) > maxKey:
		return nil, fmt.Errorf("has more than %d KiB in %s or more than %d KiB in %s; store only one certificate chain and its key there", maxChain>>10, corev1.TLSCertKey, maxKey>>10, corev1.TLSPrivateKeyKey)
	}
	leaf, err := config.CheckPair(chain, key)
	var misfit config.KeyError
	switch {
	case errors.As(err, &misfit):
		return nil, fmt.Errorf("contains a %s that %w", corev1.TLSPrivateKeyKey, err)
	case err != nil:
		return nil, fmt.Errorf("contains a %s that %w", corev1.TLSCertKey, err)
	}
	return leaf, nil
}

// offer is the Secret that an entry of spec.tls of an Ingress names for a host.
type offer struct {
	by     *ingress
	secret config.ObjectName // empty: the default certificate
	worth  worth
}

// worth orders the offers for a host: a missing Secret must not win.
type worth int

const (
	broken worth = iota
	misfit       // usable, but not valid for the host
	fitting
)

// certificates gives each host the Secret of the oldest Ingress whose Secret is valid
// for the host. Hosts without a usable Secret get the default certificate, or none.
func (v *conversion) certificates() {
	v.defaultCertificate()
	offers := map[string][]offer{}
	for _, i := range v.ingresses {
		routed := map[string]bool{}
		for _, host := range i.hosts {
			routed[host] = host != ""
		}
		for n := range i.Spec.TLS {
			v.offer(i, &i.Spec.TLS[n], routed, offers)
		}
	}
	configured, served := v.configured(), map[config.ObjectName][]string{}
	for _, host := range slices.Sorted(maps.Keys(offers)) {
		if setting := configured[host]; setting != "" {
			v.refuse(host, setting, offers[host])
			continue
		}
		for _, secret := range v.award(host, offers[host]) {
			served[secret] = append(served[secret], host)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(served), compareNames) {
		v.serve(name, served[name])
	}
}

// serve assigns the Secret to the hosts, or the default certificate if the Secret is
// not usable.
func (v *conversion) serve(name config.ObjectName, hosts []string) {
	s := v.secrets[name]
	can := s != nil && v.look(s).err == nil
	if !can && v.out.Default != nil {
		p := v.out.Default.Pair
		known := make(map[string]bool, len(p.Hosts)) // one Ingress may have tens of thousands
		for _, host := range p.Hosts {
			known[host] = true
		}
		for _, host := range hosts {
			if !known[host] && (name.Name != "" || !v.onDemand(host)) {
				known[host] = true
				p.Hosts = append(p.Hosts, host)
			}
		}
		return
	}
	if name == (config.ObjectName{}) {
		return // the file decides
	}
	p := &config.Pair{Name: name.String(), Hosts: hosts}
	if can {
		p.CertPEM, p.KeyPEM = s.Data[corev1.TLSCertKey], config.Secret(s.Data[corev1.TLSPrivateKeyKey])
	}
	v.out.Certificates = append(v.out.Certificates, config.Certificate{Pair: p})
}

// onDemand reports whether the file lets weir order the certificate of the host when a
// client first asks for it.
func (v *conversion) onDemand(host string) bool {
	return slices.ContainsFunc(v.file.Certificates, func(c config.Certificate) bool {
		return c.ACME != nil && c.ACME.OnDemand != nil && (len(c.ACME.OnDemand.Hosts) == 0 || covers(c.ACME.OnDemand.Hosts, host))
	})
}

// configured maps the hosts for which the configuration has a certificate to the
// setting: the hosts that the file lists explicitly, and the wildcards of the
// default certificate, which is also valid for other names.
func (v *conversion) configured() map[string]string {
	by := map[string]string{}
	if v.out.Default != nil {
		for _, host := range v.out.Default.Pair.Hosts {
			if strings.HasPrefix(host, "*.") {
				by[host] = "kubernetes.default_certificate"
			}
		}
	}
	for i := range v.file.Certificates {
		c := &v.file.Certificates[i]
		written := c.SelfSigned
		if c.ACME != nil {
			written = c.ACME.Hosts
		}
		for _, host := range written {
			if parsed, err := config.ParseHost(host); err == nil {
				by[parsed] = "certificates"
			}
		}
	}
	return by
}

// refuse reports the Secrets for a host whose certificate the configuration sets.
func (v *conversion) refuse(host, setting string, offers []offer) {
	for _, o := range offers {
		if o.secret != (config.ObjectName{}) {
			v.on(o.by, event.ReasonTaken, "weir's configuration sets the certificate of %s under %s, so weir does not use the Secret %s for it; remove the host from spec.tls, or change the configuration.", host, setting, o.secret)
		}
	}
}

// offer collects the offers of one entry of spec.tls of an Ingress.
func (v *conversion) offer(i *ingress, t *networkingv1.IngressTLS, routed map[string]bool, offers map[string][]offer) {
	o := offer{by: i, secret: config.ObjectName{Namespace: i.Namespace, Name: t.SecretName}}
	var names coverage
	usable := false
	if t.SecretName == "" {
		o.secret = config.ObjectName{}
		if v.out.Default != nil {
			names, usable = v.look(v.secrets[v.settings.DefaultCertificate]).covers, true
		}
	} else if s := v.secrets[o.secret]; s == nil {
		v.on(i, event.ReasonCertificate, "The Secret %s does not exist. Until it does, %s.", o.secret, v.withoutSecret())
	} else if p := v.look(s); p.err != nil {
		v.on(i, event.ReasonCertificate, "The Secret %s %v. Until then, %s.", o.secret, p.err, v.withoutSecret())
	} else {
		names, usable = p.covers, true
	}
	for _, host := range v.tlsHosts(i, t, routed, names) {
		switch {
		case usable && names.has(host), t.SecretName == "" && !usable && len(v.file.Certificates) > 0:
			o.worth = fitting // the names in the file's certificates are not known here
		case usable:
			o.worth = misfit
		default:
			o.worth = broken
		}
		offers[host] = append(offers[host], o)
	}
}

// award returns the Secrets that serve the host: all of the Ingress that wins, which
// may have several kinds of keys.
func (v *conversion) award(host string, offers []offer) (secrets []config.ObjectName) {
	owner := offers[0]
	for _, o := range offers {
		if o.worth > owner.worth {
			owner = o
		}
	}
	nothing := config.ObjectName{}
	for _, o := range offers {
		if o.by == owner.by && o.worth == owner.worth && o.secret != nothing && !slices.Contains(secrets, o.secret) {
			secrets = append(secrets, o.secret)
		}
	}
	older := true // the offers before the owner's are from older Ingresses
	for _, o := range offers {
		switch {
		case o.by == owner.by:
			if older = false; o.worth == misfit && o.secret != nothing {
				v.on(o.by, event.ReasonCertificate, "The certificate in the Secret %s is not valid for %s, so clients will refuse it; use a certificate for this host.", o.secret, host)
			}
		case o.secret == nothing || slices.Contains(secrets, o.secret):
		case older:
			v.on(o.by, event.ReasonCertificate, "The Secret %s has no usable certificate for %s, so weir uses the certificate of the younger Ingress %s; use a certificate for this host, or remove the host from spec.tls.", o.secret, host, owner.by.name)
		case len(secrets) == 0:
			v.on(o.by, event.ReasonCertificate, "The older Ingress %s uses the default certificate for %s, so weir does not use the Secret %s for it; name the Secret there, or remove the host from spec.tls.", owner.by.name, host, o.secret)
		default:
			v.on(o.by, event.ReasonCertificate, "The older Ingress %s has another Secret for %s, so weir does not use the Secret %s for it; name the same Secret in both, or remove the host from spec.tls.", owner.by.name, host, o.secret)
		}
	}
	if len(secrets) == 0 {
		return []config.ObjectName{nothing}
	}
	return secrets
}

func (v *conversion) withoutSecret() string {
	if v.out.Default != nil {
		return "clients get the default certificate"
	}
	return "weir refuses TLS handshakes for its hosts"
}

// tlsHosts are the hosts of an entry: those that it lists and that also have a rule.
// An entry without a list is for the hosts of the rules for which the certificate is
// valid (without a Secret, for all of them). A rule without a host gives no
// certificate to any host: otherwise any author could choose it for all hosts.
func (v *conversion) tlsHosts(i *ingress, t *networkingv1.IngressTLS, routed map[string]bool, names coverage) (hosts []string) {
	for _, written := range t.Hosts {
		host, err := config.ParseHost(written)
		switch {
		case err != nil:
			v.on(i, event.ReasonTLSHost, "The host %q in spec.tls %v.", written, err)
		case v.isOthers(i, host):
			if !i.lost[host] {
				v.on(i, event.ReasonHostTaken, "Another namespace owns the host %s in spec.tls (kubernetes.host_ownership in weir's configuration), so weir uses no certificate of this Ingress for it; remove the host.", host)
			}
		case !routed[host] && !routed[wildcardOf(host)]:
			v.on(i, event.ReasonTLSHost, "The host %s in spec.tls has no rule, so weir uses no certificate of this Ingress for it; add a rule, or remove the host from spec.tls.", host)
		default:
			hosts = append(hosts, host)
		}
	}
	if len(t.Hosts) > 0 {
		return hosts
	}
	for _, host := range i.hosts {
		if host != "" && (t.SecretName == "" || names.has(host)) {
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 && len(names) > 0 && t.SecretName != "" && len(i.lost) == 0 {
		v.on(i, event.ReasonTLSHost, "An entry of spec.tls has no hosts, and the certificate in its Secret %s/%s is valid for no host of the rules, so weir does not use it; add a rule for a host of the certificate.", i.Namespace, t.SecretName)
	}
	return hosts
}

// namesOf are the names in a certificate that are valid hosts.
func namesOf(leaf *x509.Certificate) (names []string) {
	all := slices.Clone(leaf.DNSNames)
	for _, a := range leaf.IPAddresses {
		all = append(all, a.String())
	}
	if len(all) == 0 {
		all = append(all, leaf.Subject.CommonName)
	}
	known := make(map[string]bool, len(all))
	for _, name := range all {
		if host, err := config.ParseHost(name); err == nil && !known[host] {
			known[host] = true
			names = append(names, host)
		}
	}
	return names
}

// coverage is the set of names of a certificate. There may be thousands of names, and
// thousands of hosts to look up.
type coverage map[string]bool

func coverageOf(names []string) coverage {
	c := make(coverage, len(names))
	for _, name := range names {
		c[name] = true
	}
	return c
}

// has is covers for a set.
func (c coverage) has(host string) bool { return c[host] || c[wildcardOf(host)] }

// covers reports whether a certificate with these names is valid for the host. A wildcard
// in names covers the wildcard itself, and each name below it.
func covers(names []string, host string) bool {
	return slices.Contains(names, host) || !strings.HasPrefix(host, "*.") && slices.Contains(names, wildcardOf(host))
}

// defaultCertificate reads the Secret in kubernetes.default_certificate.
func (v *conversion) defaultCertificate() {
	name := v.settings.DefaultCertificate
	if name == (config.ObjectName{}) {
		return
	}
	at := corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: name.Namespace, Name: name.Name}
	s := v.secrets[name]
	if s == nil {
		v.event(at, event.ReasonCertificate, "kubernetes.default_certificate in weir's configuration names this Secret, which does not exist; create it, or change the setting.")
		return
	}
	p := v.look(s)
	if p.err != nil {
		v.event(at, event.ReasonCertificate, "kubernetes.default_certificate in weir's configuration names this Secret, which %v.", p.err)
		return
	}
	v.out.Default = &config.Certificate{Pair: &config.Pair{
		Name: name.String(), Hosts: slices.Clone(p.names), Default: true,
		CertPEM: s.Data[corev1.TLSCertKey], KeyPEM: config.Secret(s.Data[corev1.TLSPrivateKeyKey]),
	}}
}
