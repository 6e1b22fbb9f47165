package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Admin is the admin port.
type Admin struct {
	Position Position
	Network  string
	Address  string // empty: no admin port
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

// Metrics is the metrics port: it serves GET /metrics, and no request that changes weir.
type Metrics struct {
	Position Position
	Network  string
	Address  string
}

func (v *draft) adminPort(n *yaml.Node, p path) {
	a := v.admin
	a.Position = v.at(n)
	there := v.section(n, p, []field{
		{"address", func(n *yaml.Node, p path) {
			if n.Value == "off" {
				a.Network, a.Address = "", ""
				return
			}
			v.listenAddress(&a.Network, &a.Address)(n, p)
		}},
		{"hosts", list(v.decoder, &a.Hosts, v.adminHost)},
		{"token", v.secret(&a.Token, func(s string) (string, error) {
			if err := checkToken(s); err != nil {
				return "", fmt.Errorf("%w (it is not shown)", err)
			}
			return s, nil
		})},
		{"token_file", v.text(&a.TokenFile)},
		{"tls", func(n *yaml.Node, p path) {
			a.TLS = &AdminTLS{}
			v.mark(a.TLS, n, p)
			there := v.section(n, p, []field{
				{"cert", v.text(&a.TLS.CertFile)},
				{"key", v.text(&a.TLS.KeyFile)},
				{"client_ca", v.text(&a.TLS.ClientCAFile)},
			}...)
			v.require(there, n, p, "cert", "admin.crt")
			v.require(there, n, p, "key", "admin.key")
		}},
	}...)
	v.adminToken = there["token"] || there["token_file"]
	if v.given(&a.Token) && v.given(&a.TokenFile) {
		v.failAt(v.places[&a.TokenFile], "admin.token is set as well; keep one of the two")
	}
}

func (v *draft) metricsPort(n *yaml.Node, p path) {
	v.metrics = &Metrics{Position: v.at(n)}
	there := v.section(n, p, field{"address", v.listenAddress(&v.metrics.Network, &v.metrics.Address)})
	v.require(there, n, p, "address", `":8088"`)
}

// adminHost decodes a name that the Host header may have on the admin port.
func (v *draft) adminHost(dst *string) setter {
	return parsed(v.decoder, dst, "a host name", func(s string) (string, error) {
		host, err := parseHost(s)
		if err == nil && strings.HasPrefix(host, "*") {
			err = errors.New("is a wildcard, and a stranger could point one of its names here; write each name")
		}
		return host, err
	})
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
	}
}

// tokenOf returns the content of a file without white space around it.
func (v *draft) tokenOf(file *string) Secret {
	data, err := readRegular(*file, maxPEM)
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

func (a *Admin) fill(t *tree, s *shower) {
	where := address(a.Network, a.Address)
	if where == "" {
		where = "off"
	}
	t.text("address", where, true)
	t.texts("hosts", a.Hosts)
	if a.TokenFile != "" {
		t.text("token_file", a.TokenFile, true)
	} else if a.Token != "" {
		t.text("token", s.key(a.Token), true)
	}
	if a.TLS != nil {
		t.section("tls", func(t *tree) {
			t.text("cert", a.TLS.CertFile, true)
			t.text("key", a.TLS.KeyFile, true)
			t.text("client_ca", a.TLS.ClientCAFile, a.TLS.ClientCAFile != "")
		})
	}
}
