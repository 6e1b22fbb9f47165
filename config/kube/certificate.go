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
	leaf *x509.Certificate
	err  error // why it cannot be served; it says so after the Secret's name
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
			p.leaf, p.err = checkPair(s)
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

// secretHosts are the hosts that a Secret is served for.
type secretHosts map[config.ObjectName][]string

// certificates gives each host the Secret that the oldest Ingress with one for
// it names. Hosts whose Secret cannot be served get the default one, or none.
func (v *conversion) certificates() {
	v.defaultCertificate()
	all, owner := secretHosts{}, map[string]*ingress{}
	for _, i := range v.ingresses {
		for n := range i.Spec.TLS {
			v.entry(i, &i.Spec.TLS[n], all, owner)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(all), compareNames) {
		hosts := slices.Sorted(slices.Values(all[name]))
		hosts = slices.Compact(hosts)
		s := v.secrets[name]
		usable := s != nil && v.look(s).err == nil
		if !usable && v.out.Default != nil {
			v.out.Default.Pair.Hosts = append(v.out.Default.Pair.Hosts, hosts...)
			continue
		}
		p := &config.Pair{Name: name.String(), Hosts: hosts}
		if usable {
			p.CertPEM, p.KeyPEM = s.Data[corev1.TLSCertKey], config.Secret(s.Data[corev1.TLSPrivateKeyKey])
		}
		v.out.Certificates = append(v.out.Certificates, config.Certificate{Pair: p})
	}
}

// entry looks at one entry of an Ingress's section tls.
func (v *conversion) entry(i *ingress, t *networkingv1.IngressTLS, all secretHosts, owner map[string]*ingress) {
	if t.SecretName == "" {
		return // what there is by name, or the default
	}
	secret := config.ObjectName{Namespace: i.Namespace, Name: t.SecretName}
	var leaf *x509.Certificate
	if s := v.secrets[secret]; s == nil {
		v.on(i, ReasonCertificate, "The Secret %s does not exist; %s until it does.", secret, v.withoutSecret())
	} else if p := v.look(s); p.err != nil {
		v.on(i, ReasonCertificate, "The Secret %s %v; until then %s.", secret, p.err, v.withoutSecret())
	} else {
		leaf = p.leaf
	}
	for _, host := range v.tlsHosts(i, t, leaf) {
		switch other := owner[host]; {
		case other != nil && other != i:
			if !slices.Contains(all[secret], host) {
				v.on(i, ReasonCertificate, "The older Ingress %s has another Secret for %s, so %s is not served for it; name the same, or take the host out of tls.", other.name, host, secret)
			}
			continue
		case leaf != nil && !covers(leaf, host):
			v.on(i, ReasonCertificate, "The certificate in the Secret %s is not for %s, so clients will refuse it; make one that is.", secret, host)
		}
		owner[host] = i
		all[secret] = append(all[secret], host)
	}
}

func (v *conversion) withoutSecret() string {
	if v.out.Default != nil {
		return "clients are shown the default certificate"
	}
	return "handshakes for its hosts are refused"
}

// tlsHosts are the hosts that an entry is for: those that it lists and the rules
// have, or without a list those of the rules that the certificate is for.
func (v *conversion) tlsHosts(i *ingress, t *networkingv1.IngressTLS, leaf *x509.Certificate) (hosts []string) {
	for _, written := range t.Hosts {
		host, err := config.ParseHost(written)
		switch {
		case err != nil:
			v.on(i, ReasonTLSHost, "The host %q in tls %v.", written, err)
		case !i.routes(host):
			v.on(i, ReasonTLSHost, "No rule is for the host %s in tls, so it gets no certificate by this Ingress; add a rule, or take the host out.", host)
		case !slices.Contains(hosts, host):
			hosts = append(hosts, host)
		}
	}
	if len(t.Hosts) > 0 || leaf == nil {
		return hosts
	}
	if i.routes("") {
		return namesOf(leaf)
	}
	for _, host := range i.hosts {
		if covers(leaf, host) {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// routes says whether the Ingress has a rule for the host.
func (i *ingress) routes(host string) bool {
	return len(i.Spec.Rules) == 0 || slices.Contains(i.hosts, "") ||
		host != "" && (slices.Contains(i.hosts, host) || slices.Contains(i.hosts, wildcardOf(host)))
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

// covers says whether the certificate is for the host. One for a wildcard is the wildcard's, and each of its names'.
func covers(leaf *x509.Certificate, host string) bool {
	names := namesOf(leaf)
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
		Name: name.String(), Hosts: namesOf(p.leaf), Default: true,
		CertPEM: s.Data[corev1.TLSCertKey], KeyPEM: config.Secret(s.Data[corev1.TLSPrivateKeyKey]),
	}}
}
