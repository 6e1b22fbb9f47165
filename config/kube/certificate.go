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
)

// pair is a Secret that was looked at.
type pair struct {
	names []string // that it is for
	err   error    // why it cannot be served; it says so after the Secret's name
}

// The largest chain and key that are looked at. A key of 16384 bits, which
// nobody's clients take, has a quarter of that.
const (
	maxChain = 256 << 10
	maxKey   = 64 << 10
)

// look reads the pair in a Secret. Informers replace objects and never change
// them, so each is looked at once.
func (v *conversion) look(s *corev1.Secret) pair {
	p, known := v.pairs[s]
	if !known {
		if p, known = v.known[s]; !known {
			leaf, err := checkPair(s)
			if p.err = err; err == nil {
				p.names = namesOf(leaf)
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
		return nil, fmt.Errorf("has no %s; make it of type kubernetes.io/tls", corev1.TLSCertKey)
	case len(key) == 0:
		return nil, fmt.Errorf("has no %s; make it of type kubernetes.io/tls", corev1.TLSPrivateKeyKey)
	case len(chain) > maxChain || len(key) > maxKey:
		return nil, fmt.Errorf("has more in %s and %s than any certificate; put one chain and its key there", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	leaf, err := config.CheckPair(chain, key)
	var misfit config.KeyError
	switch {
	case errors.As(err, &misfit):
		return nil, fmt.Errorf("has in %s what %w", corev1.TLSPrivateKeyKey, err)
	case err != nil:
		return nil, fmt.Errorf("has in %s what %w", corev1.TLSCertKey, err)
	}
	return leaf, nil
}

// offer is what an entry of an Ingress's section tls has for a host.
type offer struct {
	by     *ingress
	secret config.ObjectName // empty: the default certificate
	worth  worth
}

// worth orders the offers for a host: a Secret that is missing takes it from nobody.
type worth int

const (
	broken worth = iota
	misfit       // it can be served, and is not for the host
	fitting
)

// certificates gives each host the Secret that the oldest Ingress with a fitting
// one for it names. Hosts that have no usable one get the default, or none.
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

// serve makes the Secret that of the hosts, or the default certificate where it
// cannot be.
func (v *conversion) serve(name config.ObjectName, hosts []string) {
	s := v.secrets[name]
	can := s != nil && v.look(s).err == nil
	if !can && v.out.Default != nil {
		p := v.out.Default.Pair
		for _, host := range hosts {
			if !slices.Contains(p.Hosts, host) && (name.Name != "" || !v.onDemand(host)) {
				p.Hosts = append(p.Hosts, host)
			}
		}
		return
	}
	if name == (config.ObjectName{}) {
		return // what the file has for everybody
	}
	p := &config.Pair{Name: name.String(), Hosts: hosts}
	if can {
		p.CertPEM, p.KeyPEM = s.Data[corev1.TLSCertKey], config.Secret(s.Data[corev1.TLSPrivateKeyKey])
	}
	v.out.Certificates = append(v.out.Certificates, config.Certificate{Pair: p})
}

// onDemand says whether the file has an authority give the host's certificate when a client asks.
func (v *conversion) onDemand(host string) bool {
	return slices.ContainsFunc(v.file.Certificates, func(c config.Certificate) bool {
		return c.ACME != nil && c.ACME.OnDemand != nil && (len(c.ACME.OnDemand.Hosts) == 0 || covers(c.ACME.OnDemand.Hosts, host))
	})
}

// configured are the hosts that the configuration has a certificate for, and by
// which setting: those that the file writes out, and the wildcards of the
// default certificate, which others may be served by.
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

// refuse tells of Secrets for a host that the configuration has one for.
func (v *conversion) refuse(host, setting string, offers []offer) {
	for _, o := range offers {
		if o.secret != (config.ObjectName{}) {
			v.on(o.by, ReasonTaken, "weir's configuration has a certificate for %s by %s, so %s is not served for it; take the host out of tls, or change the configuration.", host, setting, o.secret)
		}
	}
}

// offer looks at one entry of an Ingress's section tls.
func (v *conversion) offer(i *ingress, t *networkingv1.IngressTLS, routed map[string]bool, offers map[string][]offer) {
	o := offer{by: i, secret: config.ObjectName{Namespace: i.Namespace, Name: t.SecretName}}
	var names []string
	usable := false
	if t.SecretName == "" {
		o.secret = config.ObjectName{}
		if v.out.Default != nil {
			names, usable = v.out.Default.Pair.Hosts, true
		}
	} else if s := v.secrets[o.secret]; s == nil {
		v.on(i, ReasonCertificate, "The Secret %s does not exist; %s until it does.", o.secret, v.withoutSecret())
	} else if p := v.look(s); p.err != nil {
		v.on(i, ReasonCertificate, "The Secret %s %v; until then %s.", o.secret, p.err, v.withoutSecret())
	} else {
		names, usable = p.names, true
	}
	for _, host := range v.tlsHosts(i, t, routed, names) {
		switch {
		case usable && covers(names, host), t.SecretName == "" && !usable && len(v.file.Certificates) > 0:
			o.worth = fitting // which names are in the file's certificates is not known here
		case usable:
			o.worth = misfit
		default:
			o.worth = broken
		}
		offers[host] = append(offers[host], o)
	}
}

// award returns the Secrets that serve the host: those of the Ingress that has
// the host, which may be of several kinds of keys.
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
	older := true // what is looked at, before the owner
	for _, o := range offers {
		switch {
		case o.by == owner.by:
			if older = false; o.worth == misfit && o.secret != nothing {
				v.on(o.by, ReasonCertificate, "The certificate in the Secret %s is not for %s, so clients will refuse it; make one that is.", o.secret, host)
			}
		case o.secret == nothing || slices.Contains(secrets, o.secret):
		case older:
			v.on(o.by, ReasonCertificate, "The younger Ingress %s has a certificate for %s, and %s has none that can be served for it, so that one is; make one that is for the host, or take it out of tls.", owner.by.name, host, o.secret)
		case len(secrets) == 0:
			v.on(o.by, ReasonCertificate, "The older Ingress %s wants the default certificate for %s, so %s is not served for it; name the Secret there, or take the host out of tls.", owner.by.name, host, o.secret)
		default:
			v.on(o.by, ReasonCertificate, "The older Ingress %s has another Secret for %s, so %s is not served for it; name the same, or take the host out of tls.", owner.by.name, host, o.secret)
		}
	}
	if len(secrets) == 0 {
		return []config.ObjectName{nothing}
	}
	return secrets
}

func (v *conversion) withoutSecret() string {
	if v.out.Default != nil {
		return "clients are shown the default certificate"
	}
	return "handshakes for its hosts are refused"
}

// tlsHosts are the hosts that an entry is for: those that it lists and the rules
// have, or without a list those of the rules that the names are for (without a
// Secret all). A rule for
// every host is for none of them: else anybody could choose anybody's certificate.
func (v *conversion) tlsHosts(i *ingress, t *networkingv1.IngressTLS, routed map[string]bool, names []string) (hosts []string) {
	for _, written := range t.Hosts {
		host, err := config.ParseHost(written)
		switch {
		case err != nil:
			v.on(i, ReasonTLSHost, "The host %q in tls %v.", written, err)
		case !routed[host] && !routed[wildcardOf(host)]:
			v.on(i, ReasonTLSHost, "No rule is for the host %s in tls, so it gets no certificate by this Ingress; add a rule, or take the host out.", host)
		default:
			hosts = append(hosts, host)
		}
	}
	if len(t.Hosts) > 0 {
		return hosts
	}
	for _, host := range i.hosts {
		if host != "" && (t.SecretName == "" || covers(names, host)) {
			hosts = append(hosts, host)
		}
	}
	if len(hosts) == 0 && len(names) > 0 && t.SecretName != "" {
		v.on(i, ReasonTLSHost, "An entry of tls has no hosts, and no rule has one that the certificate in the Secret %s/%s is for, so it is served for none; add hosts to the rules.", i.Namespace, t.SecretName)
	}
	return hosts
}

// namesOf are the names in a certificate that can be hosts.
func namesOf(leaf *x509.Certificate) (names []string) {
	all := slices.Clone(leaf.DNSNames)
	for _, a := range leaf.IPAddresses {
		all = append(all, a.String())
	}
	if len(all) == 0 {
		all = append(all, leaf.Subject.CommonName)
	}
	for _, name := range all {
		if host, err := config.ParseHost(name); err == nil && !slices.Contains(names, host) {
			names = append(names, host)
		}
	}
	return names
}

// covers says whether a certificate for names is for the host. One for a wildcard is the wildcard's, and each of its names'.
func covers(names []string, host string) bool {
	return slices.Contains(names, host) || !strings.HasPrefix(host, "*.") && slices.Contains(names, wildcardOf(host))
}

// defaultCertificate is the one that the configuration names.
func (v *conversion) defaultCertificate() {
	name := v.settings.DefaultCertificate
	if name == (config.ObjectName{}) {
		return
	}
	at := corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: name.Namespace, Name: name.Name}
	s := v.secrets[name]
	if s == nil {
		v.event(at, ReasonCertificate, "This Secret is to have the default certificate, and does not exist; make it, or change kubernetes.default_certificate in weir's configuration.")
		return
	}
	p := v.look(s)
	if p.err != nil {
		v.event(at, ReasonCertificate, "This Secret is to have the default certificate, and %v.", p.err)
		return
	}
	v.out.Default = &config.Certificate{Pair: &config.Pair{
		Name: name.String(), Hosts: slices.Clone(p.names), Default: true,
		CertPEM: s.Data[corev1.TLSCertKey], KeyPEM: config.Secret(s.Data[corev1.TLSPrivateKeyKey]),
	}}
}
