package config

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/pause"
)

// Print returns the configuration in effect in the form of a document: with the defaults and
// with the values of the environment, and without the default of node. It names key files
// but does not have their content. "(hidden)" replaces secrets; hid reports whether it does.
func (c *Config) Print() (all *Tree, hid bool) {
	s := shower{}
	all = c.print(&s)
	return all, s.hid
}

// PrintBeside returns what c has in addition to the file that it was merged with: the
// configuration made from a cluster's objects, in the form of a document. nil: nothing. It
// is not part of any file.
func (c *Config) PrintBeside(file *Config) *Tree {
	var pairs []Certificate
	for _, cert := range c.Certificates {
		if cert.Pair != nil {
			pairs = append(pairs, cert)
		}
	}
	more := newRoot()
	more.listeners = pointers(c.Listeners[len(file.Listeners):])
	more.headers = pointers(c.HeaderPolicies[len(file.HeaderPolicies):])
	more.certificates = pointers(pairs)
	more.policies = pointers(c.TLSPolicies[len(file.TLSPolicies):])
	more.routes = c.joined(c.Routes[len(file.Routes):])
	more.backends = c.Backends[len(file.Backends):]
	all := &Tree{Shape: ShapeMapping}
	top := more.section()
	for i, name := range top.names() {
		if !slices.Contains(besideKeys, name) {
			continue
		}
		if n := top.print1(i, &shower{}); n != nil {
			all.put(name, n)
		}
	}
	return all.unlessEmpty()
}

// besideKeys are the keys of the top level under which objects of a cluster appear.
var besideKeys = []string{"listeners", "proxy_protocol", "certificates", "tls_policies", "routes", "backends"}

// A shower writes secrets, or only the part that others are allowed to see.
type shower struct {
	reveal reveal
	hid    bool // it left out a part of a secret
}

// reveal is how much of a secret the shower writes.
type reveal uint8

const (
	revealPublic  reveal = iota // what operators may see: the user of a storage, but not its password
	revealNothing               // nothing that helps a stranger to guess a secret
	revealAll                   // the secrets themselves
)

func (s *shower) key(k Secret) string {
	if s.reveal == revealAll {
		return string(k)
	}
	s.hid = true
	return k.String()
}

func (s *shower) storage(k Secret) string {
	shown := k.withoutPassword()
	switch {
	case s.reveal == revealAll:
		return string(k)
	case s.reveal == revealNothing:
		return k.withoutUser()
	case shown == string(k):
		return shown
	}
	s.hid = true
	return shown
}

// url writes a URL that weir requests. Its query may contain a secret.
func (s *shower) url(text string) string {
	if s.reveal == revealNothing {
		text, _, _ = strings.Cut(text, "?")
	}
	return text
}

// print returns the configuration; s decides how it writes secrets.
func (c *Config) print(s *shower) *Tree { return c.root().section().print(s) }

// root returns the configuration in the form of a file.
func (c *Config) root() *root {
	r := c.rootWithoutRoutes()
	r.routes = c.joined(c.Routes)
	return r
}

func (c *Config) rootWithoutRoutes() *root {
	r := &root{
		zone: c.Zone, user: c.User, landlock: c.Landlock, seccomp: c.Seccomp, pidFile: c.PIDFile, upgradeTimeout: c.UpgradeTimeout, reload: c.Reload,
		listeners: pointers(c.Listeners), headers: pointers(c.HeaderPolicies),
		certificates: pointers(c.Certificates), policies: pointers(c.TLSPolicies), echKeys: pointers(c.ECHKeys),
		rateLimits: pointers(c.RateLimits), auth: pointers(c.Auth), backends: c.Backends,
		health: c.Health, admin: &c.Admin, metrics: c.Metrics, drain: c.Drain, log: c.Log, accessLog: c.AccessLog, traces: c.Traces,
		limits: c.Limits, shared: c.Storage, kubernetes: c.Kubernetes,
	}
	if c.NodeExplicit {
		r.node = c.Node
	}
	return r
}

func pointers[T any](all []T) (out []*T) {
	for i := range all {
		out = append(out, &all[i])
	}
	return out
}

// hash identifies the effective configuration without its secrets: everybody who can read
// metrics sees the hash, and could try a list of passwords on it. weir computes it with the
// file paths as they were written, so that it does not depend on the folder, and before it
// adds defaults that come from the machine or from files.
func (c *Config) hash() string {
	h := treeHash{Hash: sha256.New(), shower: shower{reveal: revealNothing}}
	h.section(c.root().section())
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// treeHash hashes the text of a printed section, without a tree of thousands of objects.
type treeHash struct {
	hash.Hash
	shower shower
	text   []byte
}

func (h *treeHash) section(s section) {
	pause.IfDue()
	h.add("{")
	for i := range s.keys {
		if each := s.keys[i].value.each; each != nil {
			h.parts(s.keys[i].name, each)
		} else if v := s.print1(i, &h.shower); v != nil {
			h.name(s.keys[i].name)
			h.text = append(v.appendTo(h.text[:0]), ' ')
			h.Write(h.text)
		}
	}
	h.add("}")
}

// parts hashes a key with a list or mapping of sections, unless that is empty.
func (h *treeHash) parts(key string, each func(part func(name string, of section))) {
	closing := ""
	each(func(name string, of section) {
		if closing == "" {
			h.name(key)
			opening := "["
			if closing = "] "; name != "" {
				opening, closing = "{", "} "
			}
			h.add(opening)
		}
		if name != "" {
			h.name(name)
		}
		h.section(of)
		h.add(" ")
	})
	h.add(closing)
}

func (h *treeHash) name(name string) {
	h.text = append(strconv.AppendQuote(h.text[:0], name), ' ')
	h.Write(h.text)
}

func (h *treeHash) add(text string) { io.WriteString(h, text) }

// joined joins the Routes that were made from one route of the file. It omits settings in
// which they differ: Load lets the hosts inherit these again.
func (c *Config) joined(routes []*Route) (all []*Route) {
	for i := 0; i < len(routes); {
		pause.IfDue()
		first := routes[i]
		hasTLS := first.FirstBytes == "" && c.hasTLS(first)
		if alone := i+1 == len(routes) || routes[i+1].Name != first.Name; alone && (hasTLS || first.TLS == "" && first.TLSPolicy == "") {
			all = append(all, first) // there is nothing to change
			i++
			continue
		}
		r := *first
		r.Listeners, r.Hosts = slices.Clone(r.Listeners), slices.Clone(r.Hosts)
		if !hasTLS {
			r.TLS, r.TLSPolicy = "", ""
		}
		for i++; i < len(routes) && routes[i].Name == r.Name; i++ {
			part := routes[i]
			r.Listeners, r.Hosts = union(r.Listeners, part.Listeners), union(r.Hosts, part.Hosts)
			if part.TLSPolicy != r.TLSPolicy {
				r.TLSPolicy = ""
			}
			if part.TLS != r.TLS {
				r.TLS = ""
			}
		}
		all = append(all, &r)
	}
	return all
}

// hasTLS reports whether one of r's listeners has TLS to which the TLS keys of r apply.
func (c *Config) hasTLS(r *Route) bool {
	return slices.ContainsFunc(c.Listeners, func(l Listener) bool {
		return l.Protocol == ProtocolTLS && slices.Contains(r.Listeners, l.Name)
	})
}

func union(a, b []string) []string {
	for _, s := range b {
		if !slices.Contains(a, s) {
			a = append(a, s)
		}
	}
	return a
}
