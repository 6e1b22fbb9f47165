package config

import (
	"fmt"
	"net"
	"slices"
	"strings"
)

// RestartKeys are the keys, such as log.format, that a reload cannot change.
func RestartKeys() []string { return newRoot().section().restartKeys("") }

// restartKeys returns the keys within s. They are in sections that exist once.
func (s section) restartKeys(within string) (keys []string) {
	for i := range s.keys {
		k := &s.keys[i]
		if k.value.restart {
			keys = append(keys, within+k.name)
		}
		if k.value.inner != nil {
			keys = append(keys, k.value.inner().restartKeys(within+k.name+".")...)
		}
	}
	return keys
}

// ChangedByRestart returns those of the RestartKeys in which two configurations differ.
func ChangedByRestart(old, new *Config) (keys []string) {
	before, after := old.rootWithoutRoutes().section(), new.rootWithoutRoutes().section()
	for _, key := range RestartKeys() {
		if !slices.Equal(before.at(key).appendTo(nil), after.at(key).appendTo(nil)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// at prints the value of a key within sections, such as log.format; an empty text if there
// is none. It does not print the whole configuration, which may have thousands of routes.
func (s section) at(path string) *Tree {
	name, _, _ := strings.Cut(path, ".")
	top := &Tree{Shape: ShapeMapping}
	if i := slices.Index(s.names(), name); i >= 0 {
		if v := s.print1(i, &shower{}); v != nil {
			top.put(name, v)
		}
	}
	return top.at(path)
}

// at is the value of a key within a printed section.
func (t *Tree) at(path string) *Tree {
	name, rest, deeper := strings.Cut(path, ".")
	for i := 0; i+1 < len(t.Parts); i += 2 {
		switch {
		case t.Parts[i].Text != name:
		case deeper:
			return t.Parts[i+1].at(rest)
		default:
			return t.Parts[i+1]
		}
	}
	return textTree("")
}

// Lost returns what clients could reach by the old file and cannot by the new one: listeners without a listener of their
// protocol with routes at their address, hosts without a route that names or covers them, and the objects of a cluster.
func Lost(old, new *Config) (lost []string) {
	for _, l := range old.Listeners {
		reached := func(n Listener) bool {
			host, _, _ := net.SplitHostPort(n.Address)
			return n.Network == l.Network && n.Protocol == l.Protocol && (n.Address == l.Address || everyHost(host) && sameAddress(n.Network, n.Address, l.Network, l.Address)) && new.serves(n.Name)
		}
		if old.serves(l.Name) && !slices.ContainsFunc(new.Listeners, reached) {
			lost = append(lost, fmt.Sprintf("the %s listener %s (%s)", l.Protocol, l.Name, asWritten(l.Network, l.Address)))
		}
	}
	type hostBy struct {
		host     string
		protocol Protocol
	}
	named, served := make(map[string]bool), make(map[hostBy]bool)
	for host, protocol := range new.routedHosts {
		named[host], served[hostBy{host, protocol}] = true, true
	}
	for host, protocol := range old.routedHosts {
		covers := func(wildcard string) bool { return wildcard != "" && served[hostBy{wildcard, protocol}] }
		if named[host] || slices.ContainsFunc(LessSpecific(host), covers) {
			continue
		}
		named[host] = true // once
		what := "the host " + host
		if host == "" {
			what = "the routes without hosts"
		}
		lost = append(lost, what)
	}
	if old.Kubernetes != nil && new.Kubernetes == nil {
		lost = append(lost, "the objects of the cluster (kubernetes)")
	}
	return lost
}

// serves returns true if a listener has routes, or may get routes of objects.
func (c *Config) serves(listener string) bool {
	return c.Kubernetes != nil || slices.ContainsFunc(c.Routes, func(r *Route) bool { return slices.Contains(r.Listeners, listener) })
}

// routedHosts calls yield with each host of each route and the protocol of each of its listeners. The host is "" for a
// route without hosts. Routes of connections that name no host do not count.
func (c *Config) routedHosts(yield func(host string, p Protocol) bool) {
	protocols := make(map[string]Protocol)
	for _, l := range c.Listeners {
		protocols[l.Name] = l.Protocol
	}
	for _, r := range c.Routes {
		hosts := r.Hosts
		if len(hosts) == 0 {
			hosts = []string{""}
		}
		for _, name := range r.Listeners {
			if protocols[name] == ProtocolTCP || r.FirstBytes != "" {
				continue
			}
			for _, host := range hosts {
				if !yield(host, protocols[name]) {
					return
				}
			}
		}
	}
}
