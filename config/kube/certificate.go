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
	"github.com/weirproxy/weir/config/kube/claim"
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
		leaf, err := checkPair(s)
		if p.err = err; err == nil {
			p.names = namesOf(leaf)
			p.covers = coverageOf(p.names)
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

// certificatesOf are the certificates that an Ingress names.
func certificatesOf(o *networkingv1.Ingress) []claim.Certificate {
	if len(o.Spec.TLS) == 0 {
		return nil
	}
	all := make([]claim.Certificate, len(o.Spec.TLS))
	for n := range o.Spec.TLS {
		all[n].Hosts = o.Spec.TLS[n].Hosts
		if secret := o.Spec.TLS[n].SecretName; secret != "" {
			all[n].Secret = config.ObjectName{Namespace: o.Namespace, Name: secret}
		}
	}
	return all
}

// award gives each host the Secret of the oldest object whose Secret is valid for the host.
// It returns the hosts of each Secret, in order. Hosts without a usable Secret have an empty
// name: they get the default certificate, or none.
func (v *conversion) award() map[config.ObjectName][]string {
	offers := map[string][]claim.Offer{}
	for _, o := range v.decision.Owners {
		if len(o.Certificates) == 0 {
			continue
		}
		rules := rulesOf(o)
		for n := range o.Certificates {
			v.offer(o, &o.Certificates[n], rules, offers)
		}
	}
	served := map[config.ObjectName][]string{}
	for _, host := range slices.Sorted(maps.Keys(offers)) {
		if setting := v.configured[host]; setting != "" {
			v.refuse(host, setting, offers[host])
			continue
		}
		for _, secret := range v.decision.Award(host, offers[host]) {
			served[secret] = append(served[secret], host)
		}
	}
	return served
}

// serve assigns the Secret to the hosts, or the default certificate if the Secret is
// not usable.
func (v *conversion) serve(name config.ObjectName, hosts []string) {
	s := v.secret(name)
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

// findConfigured maps the hosts for which the configuration has a certificate to the
// setting: the hosts that the file lists explicitly, and the wildcards of the
// default certificate, which is also valid for other names.
func (v *conversion) findConfigured() map[string]string {
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
func (v *conversion) refuse(host, setting string, offers []claim.Offer) {
	for _, o := range offers {
		if o.Secret.Name != "" {
			v.on(o.Owner, event.ReasonTaken, "weir's configuration sets the certificate of %s under %s, so weir does not use the Secret %s for it; remove the host from %s, or change the configuration.", host, setting, o.Secret, o.Owner.Kind.TLS)
		}
	}
}

// ruleHostsOf are the hosts of the rules of an object.
type ruleHostsOf struct {
	routed   map[string]bool
	unlisted []string        // the hosts, without wildcards, that no certificate of the object lists
	below    map[string]bool // the wildcards above unlisted
	tried    map[config.ObjectName]bool
}

func rulesOf(o *claim.Owner) *ruleHostsOf {
	r := &ruleHostsOf{routed: map[string]bool{}, below: map[string]bool{}, tried: map[config.ObjectName]bool{}}
	listed := map[string]bool{}
	for i := range o.Certificates {
		for _, written := range o.Certificates[i].Hosts {
			if host, err := config.ParseHost(written); err == nil {
				listed[host] = true
			}
		}
	}
	for _, host := range o.Hosts {
		if r.routed[host] = host != ""; host != "" && !listed[host] && !strings.HasPrefix(host, "*.") {
			r.unlisted = append(r.unlisted, host)
			r.below[claim.WildcardOf(host)] = true
		}
	}
	return r
}

// offer collects the offers of one certificate that an object names.
func (v *conversion) offer(by *claim.Owner, c *claim.Certificate, rules *ruleHostsOf, offers map[string][]claim.Offer) {
	o := claim.Offer{Owner: by, Secret: c.Secret}
	var names coverage
	usable := false
	if c.Secret.Name == "" {
		if v.out.Default != nil {
			names, usable = v.look(v.secret(v.settings.DefaultCertificate)).covers, true
		}
	} else if s := v.secret(o.Secret); s == nil {
		v.on(by, event.ReasonCertificate, "The Secret %s does not exist. Until it does, %s.", o.Secret, v.withoutSecret())
	} else if p := v.look(s); p.err != nil {
		v.on(by, event.ReasonCertificate, "The Secret %s %v. Until then, %s.", o.Secret, p.err, v.withoutSecret())
	} else {
		names, usable = p.covers, true
	}
	for _, host := range v.certificateHosts(by, c, rules, names) {
		switch {
		case usable && names.has(host), c.Secret.Name == "" && !usable && len(v.file.Certificates) > 0:
			o.Worth = claim.Fitting // the names in the file's certificates are not known here
		case usable:
			o.Worth = claim.Misfit
		default:
			o.Worth = claim.Broken
		}
		offers[host] = append(offers[host], o)
	}
}

func (v *conversion) withoutSecret() string {
	if v.out.Default != nil {
		return "clients get the default certificate"
	}
	return "weir refuses TLS handshakes for its hosts"
}

// certificateHosts are the hosts of a certificate: those that it lists and that also have a
// rule, and those of the rules for which it is valid and that no certificate of the object lists, as in
// ingress-nginx. Without a list they are the hosts of the rules for which the certificate is
// valid (without a Secret, all of them). A rule without a host gives no certificate to any
// host: otherwise any author could choose it for all hosts.
func (v *conversion) certificateHosts(by *claim.Owner, c *claim.Certificate, rules *ruleHostsOf, names coverage) (hosts []string) {
	field, kind := by.Kind.TLS, by.Kind.Name
	for _, written := range c.Hosts {
		host, err := config.ParseHost(written)
		switch {
		case err != nil:
			v.on(by, event.ReasonTLSHost, "The host %q in %s %v.", written, field, err)
		case v.decision.IsOthers(by, host):
			if !by.HasLost(host) {
				v.on(by, event.ReasonHostTaken, "Another namespace owns the host %s in %s (kubernetes.host_ownership in weir's configuration), so weir uses no certificate of this %s for it; remove the host.", host, field, kind)
			}
		case !rules.routed[host] && !rules.routed[claim.WildcardOf(host)] && rules.below[host] && names.has(host) && c.Secret.Name != "":
			// the certificate is for unlisted hosts
		case !rules.routed[host] && !rules.routed[claim.WildcardOf(host)]:
			v.on(by, event.ReasonTLSHost, "The host %s in %s has no rule, so weir uses no certificate of this %s for it; add a rule, or remove the host from %[2]s.", host, field, kind)
		default:
			hosts = append(hosts, host)
		}
	}
	if len(c.Hosts) > 0 {
		if c.Secret.Name != "" && len(names) > 0 && !rules.tried[c.Secret] {
			rules.tried[c.Secret] = true
			for _, host := range rules.unlisted {
				if names.has(host) {
					hosts = append(hosts, host)
				}
			}
		}
		return hosts
	}
	for _, host := range by.Hosts {
		if host != "" && (c.Secret.Name == "" || names.has(host)) {
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 && len(names) > 0 && c.Secret.Name != "" && !by.HasLostAny() {
		v.on(by, event.ReasonTLSHost, "An entry of %s has no hosts, and the certificate in its Secret %s is valid for no host of the rules, so weir does not use it; add a rule for a host of the certificate.", field, c.Secret)
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
func (c coverage) has(host string) bool { return c[host] || c[claim.WildcardOf(host)] }

// covers reports whether a certificate with these names is valid for the host. A wildcard
// in names covers the wildcard itself, and each name below it.
func covers(names []string, host string) bool {
	return slices.Contains(names, host) || !strings.HasPrefix(host, "*.") && slices.Contains(names, claim.WildcardOf(host))
}

// defaultCertificate reads the Secret in kubernetes.default_certificate.
func (v *conversion) defaultCertificate() {
	name := v.settings.DefaultCertificate
	if name == (config.ObjectName{}) {
		return
	}
	at := corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: name.Namespace, Name: name.Name}
	s := v.secret(name)
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
