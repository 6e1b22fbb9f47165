package annotation

import (
	"crypto/tls"
	"regexp"
	"strings"
)

// proxySSLs is the family of TLS to Services.
var proxySSLs = union([]map[string]judge{
	{"proxy-ssl-secret": {look: rateIn(readProxySSL, "proxy-ssl-secret"), set: setProxySSL}},
	ratedBy(readProxySSL, "proxy-ssl-verify", "proxy-ssl-verify-depth", "proxy-ssl-name", "proxy-ssl-server-name", "proxy-ssl-protocols", "proxy-ssl-ciphers"),
})

// ProxySSL is the TLS to the Services of an Ingress. The other fields count only with Secret.
type ProxySSL struct {
	Secret   string // has the certificate of the client, and the CAs; empty: no annotation
	Verify   bool   // the certificate of the Service
	Name     string // that the certificate must have
	SendName bool   // as SNI
	// MinVersion and MaxVersion are crypto/tls version numbers.
	MinVersion, MaxVersion uint16
}

const (
	otherSecret   = "the Secret is in another namespace, or its name is not valid, so " + closedFor + ", as ingress-nginx does; write namespace/name of a Secret in the namespace of the Ingress"
	bareSecret    = "ingress-nginx refuses a name without namespace; weir uses the Secret in the namespace of the Ingress"
	needsSecret   = "the annotation has an effect only with proxy-ssl-secret, in weir as in ingress-nginx"
	unlimited     = "weir accepts chains of any length"
	ownCiphers    = "weir uses its own cipher suites to Services"
	badSSLName    = "ingress-nginx ignores the value, and so does weir; write the name of a host"
	noSSLName     = "without proxy-ssl-name the certificate must have the name upstream_balancer, as in ingress-nginx; write proxy-ssl-name"
	badSSLVersion = "ingress-nginx ignores other versions than TLSv1.2 and TLSv1.3, and so does weir"
	badOnOff      = "ingress-nginx takes the value for off, as weir does"
)

// unnamed is the name that nginx expects of Services.
const unnamed = "upstream_balancer"

var sslName = regexp.MustCompile(`^[a-zA-Z0-9*_]([a-zA-Z0-9_.-]*[a-zA-Z0-9_])?$`)

func setProxySSL(_ string, c context, s *Settings) (Rating, string) {
	s.ProxySSL, _ = readProxySSL(c)
	return Exact, ""
}

func readProxySSL(c context) (p ProxySSL, ratings map[string]because) {
	ratings = map[string]because{}
	text := c.value("proxy-ssl-secret")
	if text == "" {
		for _, name := range []string{"proxy-ssl-verify", "proxy-ssl-verify-depth", "proxy-ssl-name", "proxy-ssl-server-name", "proxy-ssl-protocols", "proxy-ssl-ciphers"} {
			if value := c.value(name); value != "" && value != "off" {
				ratings[name] = because{Near, needsSecret}
			}
		}
		return p, ratings
	}
	var ok bool
	if p.Secret, ok = c.named(text); !ok {
		ratings["proxy-ssl-secret"] = because{guard, otherSecret}
		return ProxySSL{}, ratings
	}
	if !strings.Contains(text, "/") {
		ratings["proxy-ssl-secret"] = because{Near, bareSecret}
	}
	isOn := func(name string) bool {
		value := c.value(name)
		if value != "" && value != "on" && value != "off" {
			ratings[name] = because{Near, badOnOff}
		}
		return value == "on"
	}
	p.Verify, p.SendName = isOn("proxy-ssl-verify"), isOn("proxy-ssl-server-name")
	p.Name = unnamed
	switch value := c.value("proxy-ssl-name"); {
	case value == "" && p.Verify:
		ratings["proxy-ssl-verify"] = because{Near, noSSLName}
	case value == "":
	case !sslName.MatchString(value):
		ratings["proxy-ssl-name"] = because{Near, badSSLName}
	default:
		p.Name = value
	}
	p.readVersions(c, ratings)
	if c.value("proxy-ssl-verify-depth") != "" {
		ratings["proxy-ssl-verify-depth"] = because{Near, unlimited}
	}
	if value := c.value("proxy-ssl-ciphers"); value != "" && value != "DEFAULT" {
		ratings["proxy-ssl-ciphers"] = because{Near, ownCiphers}
	}
	return p, ratings
}

// readVersions reads proxy-ssl-protocols. ingress-nginx takes a value with other versions for its
// default.
func (p *ProxySSL) readVersions(c context, ratings map[string]because) {
	p.MinVersion, p.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	words := strings.Fields(c.value("proxy-ssl-protocols"))
	old, latest := false, false
	for _, word := range words {
		switch word {
		case "TLSv1.2":
			old = true
		case "TLSv1.3":
			latest = true
		default:
			ratings["proxy-ssl-protocols"] = because{Near, badSSLVersion}
			return
		}
	}
	if latest {
		p.MaxVersion = tls.VersionTLS13
		if !old {
			p.MinVersion = tls.VersionTLS13
		}
	}
}
