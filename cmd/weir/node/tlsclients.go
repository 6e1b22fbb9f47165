package node

import (
	"net/http"

	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/tls/policy"
)

// TLSClients is the answer to GET /tls/clients, in JSON: what policies allow, and what
// clients need.
type TLSClients struct {
	Version    string             `json:"version"`
	Node       string             `json:"node"`
	ConfigHash string             `json:"config_hash"`
	Policies   []TLSPolicy        `json:"policies"`
	Hosts      []proxy.HostRoutes `json:"hosts"`
	policy.Seen
}

// TLSPolicy is a TLS policy in effect. Versions and suites are names.
type TLSPolicy struct {
	Name         string   `json:"name"`
	MinVersion   string   `json:"min_version"`
	MaxVersion   string   `json:"max_version"`
	CipherSuites []string `json:"cipher_suites"`
	SHA1         bool     `json:"sha1_signatures,omitempty"`
}

func (s *server) showTLSClients(w http.ResponseWriter, _ *http.Request) {
	cfg := s.configInEffect()
	c := TLSClients{Version: s.build.Version, Node: cfg.Node, ConfigHash: cfg.Hash, Hosts: s.proxy.Hosts(), Seen: s.proxy.Clients.Seen()}
	for _, p := range cfg.TLSPolicies {
		t := TLSPolicy{Name: p.Name, MinVersion: policy.VersionName(p.MinVersion), MaxVersion: policy.VersionName(p.MaxVersion), SHA1: p.SHA1}
		for _, id := range p.CipherSuites {
			t.CipherSuites = append(t.CipherSuites, policy.SuiteName(id))
		}
		c.Policies = append(c.Policies, t)
	}
	writeJSON(w, c)
}
