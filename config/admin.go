package config

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/weirproxy/weir/disk"
)

// Admin is the admin port.
type Admin struct {
	Position Position
	Network  string
	Address  string // empty: no admin port
	Implied  bool   // the file names no address: weir goes on without the port if another process has it
	// Hosts are the names that the Host header may have, in addition to IP addresses and
	// localhost. Lower case, without ports.
	Hosts []string
	// Token must be in every request; empty: no token is required. The file has the token
	// itself, or the name of a file, which is read when the configuration is loaded.
	Token     Secret
	TokenFile string
	TLS       *AdminTLS // nil: plain HTTP
}

// AdminTLS has the TLS settings of the admin port.
type AdminTLS struct {
	CertFile, KeyFile string
	CertPEM           []byte // the content of the files when the configuration was loaded
	KeyPEM            Secret
	// ClientCAFile has the CA that client certificates must come from, and ClientCAPool is
	// its content; empty: clients need no certificate.
	ClientCAFile string
	ClientCAPool []byte
}

// Guarded returns true if the admin port authenticates its clients.
func (a *Admin) Guarded() bool { return a.Token != "" || a.TLS != nil && a.TLS.ClientCAFile != "" }

func (a *Admin) section() section {
	return section{object: a, position: &a.Position, check: a.checkTokens, rules: adminRules, keys: []key{
		{"address", a.addressKey(), "The address for metrics, status, the effective configuration, drain and undrain, and pprof. An address that other machines can reach needs token, token_file or tls.client_ca; changes and profiles need one of these everywhere, or come by the socket beside the port. off: no admin port."},
		{"hosts", list(&a.Hosts, adminHost.at), "Names that requests may have in Host, besides IP addresses and localhost."},
		{"token", a.tokenKey().shownIf(a.TokenFile == ""), "A secret of 16 to 1024 characters that every request needs, as Authorization: Bearer, or as the password in the URL. Take it from the environment."},
		{"token_file", text(&a.TokenFile), "A file with the token. weir reads it again when it changes. Not together with token."},
		{"tls", optional(&a.TLS, func() *AdminTLS { return &AdminTLS{} }, (*AdminTLS).section).byDefault("plain HTTP"), "Serves the port with TLS."},
	}}
}

func (a *Admin) addressKey() value {
	some := listenAddress(&a.Network, &a.Address)
	return value{
		read: func(v *draft, n *Tree, p path) {
			if n.Text == "off" {
				a.Network, a.Address = "", ""
				return
			}
			some.read(v, n, p)
		},
		print: func(*shower) *Tree {
			return textTree(cmp.Or(asWritten(a.Network, a.Address), "off"))
		},
		schema: func() *schema { return anyOf(some.schema(), &schema{Const: "off"}) },
	}
}

func (a *Admin) tokenKey() value {
	return secret(&a.Token, func(s string) (string, error) {
		if err := checkToken(s); err != nil {
			return "", fmt.Errorf("%w (it is not shown)", err)
		}
		return s, nil
	}, `[!-~]{16,}`)
}

func (a *Admin) checkTokens(v *draft, there keySet, _ *Tree, _ path) {
	v.adminToken = there.has("token") || there.has("token_file")
	if v.given(&a.Token) && v.given(&a.TokenFile) {
		v.failAt(v.places[&a.TokenFile], "admin.token is set as well; keep one of the two")
	}
}

func (t *AdminTLS) section() section {
	return section{object: t, keys: []key{
		{"cert", text(&t.CertFile).required("admin.crt"), "File with the certificate chain in PEM."},
		{"key", text(&t.KeyFile).required("admin.key"), "File with the private key of cert, in PEM."},
		{"client_ca", text(&t.ClientCAFile).byDefault("clients need no certificate"), "PEM file of CA certificates. Every connection needs a client certificate that is signed by one of them."},
	}}
}

// adminHost is a name that the Host header may have on the admin port.
var adminHost = kind[string]{what: "a host name", format: same[string], pattern: namePattern,
	parse: func(s string) (string, error) {
		host, err := parseHost(s)
		if err == nil && strings.HasPrefix(host, "*") {
			err = errors.New("is a wildcard, and a stranger could point one of its names here; write each name")
		}
		return host, err
	},
}

// The limits for the length of admin.token, in characters. A shorter token could be
// guessed. A longer one would not fit into an HTTP header.
const (
	minToken = 16
	maxToken = 1024
)

func checkToken(s string) error {
	switch {
	case len(s) < minToken:
		return fmt.Errorf("is shorter than %d characters, and could be guessed; write a random one, such as openssl rand -hex 32 makes", minToken)
	case len(s) > maxToken:
		return fmt.Errorf("is longer than %d characters; write a shorter one", maxToken)
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("has a character that no HTTP header can carry; write letters, digits and punctuation of ASCII, without spaces")
	}
	return nil
}

// checkAdmin reports an admin port that other machines can reach and that does not
// authenticate its clients.
func (v *draft) checkAdmin() {
	a := v.admin
	if a.Network != "tcp" || isLoopback(a.Address) {
		return
	}
	hasCA := a.TLS != nil && v.given(&a.TLS.ClientCAFile)
	if !v.adminToken && !hasCA {
		v.failAt(v.places[&a.Address], "other machines can reach this address, drain this node and read its memory; set admin.token, admin.token_file or admin.tls.client_ca, or keep the admin port on loopback (for Prometheus alone set metrics.address, which is read-only)")
	}
}

// adminFiles makes the paths relative to folder, and reads the files.
func (v *draft) adminFiles(folder string) {
	a := v.admin
	resolve := func(path *string) {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(folder, *path)
		}
	}
	if resolve(&a.TokenFile); a.TokenFile != "" {
		a.Token = v.tokenOf(&a.TokenFile)
	}
	t := a.TLS
	if t == nil {
		return
	}
	resolve(&t.CertFile)
	resolve(&t.KeyFile)
	resolve(&t.ClientCAFile)
	if v.pair(&t.CertFile, &t.KeyFile) != nil {
		var key []byte
		t.CertPEM, _ = v.read(&t.CertFile)
		key, _ = v.read(&t.KeyFile)
		t.KeyPEM = Secret(key)
	}
	if t.ClientCAFile != "" {
		t.ClientCAPool = v.authorities(&t.ClientCAFile)
		if cas, err := certificatesOf(t.ClientCAPool); err == nil && !NamesFit(cas) {
			v.failAt(v.places[&t.ClientCAFile], "the names of its %d CAs take more than %d bytes, and a TLS handshake has no room for more; give a file with the CAs of the admin port's clients alone", len(cas), maxNamesOfCAs)
		}
	}
}

// tokenOf returns the content of a file without white space around it.
func (v *draft) tokenOf(file *string) Secret {
	data, err := disk.Read(*file, MaxPEM)
	if err != nil {
		v.failAt(v.places[file], "%s cannot be read: %v; give the path of a file with the token in it, starting at the configuration's folder", v.quote(file, *file), reason(err))
		return ""
	}
	token := strings.TrimSpace(string(data))
	if err := checkToken(token); err != nil {
		v.failAt(v.places[file], "the token in %s %v (it is not shown)", v.quote(file, *file), err)
		return ""
	}
	return Secret(token)
}

// warnAdmin warns of a token that others on the network could read.
func (v *draft) warnAdmin() {
	a := v.admin
	if v.adminToken && a.Network == "tcp" && !isLoopback(a.Address) && a.TLS == nil {
		v.warnAt(v.places[&a.Address], "the token goes over the network unencrypted, and a machine that reads it can drain this node; set admin.tls, or keep the admin port on loopback")
	}
	if a.Network == "" {
		for _, dst := range []any{&a.Hosts, &a.Token, &a.TokenFile, a.TLS} {
			if v.given(dst) {
				v.warnAt(v.places[dst], "nothing uses this, because admin.address is off")
			}
		}
	}
}
