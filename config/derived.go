package config

import (
	"fmt"
	"net"
	"net/url"
	"slices"

	"github.com/weirproxy/weir/proxy/message"
)

// Derive adds a backend for weir's own requests to a URL of another setting. The rendered
// configuration and its hash do not contain it: they contain the other setting.
func (c *Config) Derive(b Backend) { c.derived = append(c.derived, &b) }

// AllBackends returns the backends of the configuration, and the derived ones.
func (c *Config) AllBackends() []*Backend {
	if len(c.derived) == 0 {
		return c.Backends
	}
	return slices.Concat(c.Backends, c.derived)
}

// BackendOfURL returns the backend for requests of weir itself to an absolute URL, and the
// target of these requests. The scheme is http or https; weir verifies https with the CAs of the
// system. The error is the part of a sentence after the name of the setting.
func BackendOfURL(name, text string) (b Backend, target string, err error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return Backend{}, "", fmt.Errorf(`is not a URL that weir can request; write one such as "https://auth.example.org/check"`)
	case u.User != nil:
		return Backend{}, "", fmt.Errorf("has a user name or a password, which weir does not send; take it out")
	case u.Fragment != "":
		return Backend{}, "", fmt.Errorf("has a fragment, which weir cannot send; take out the part from #")
	case message.AmbiguousPath([]byte(u.EscapedPath())):
		return Backend{}, "", fmt.Errorf("has a path that two servers could read differently, for example one with a dot segment; write the plain path")
	}
	b = NewBackend(name)
	b.Host = u.Host
	port := u.Port()
	switch {
	case u.Scheme == "https":
		b.Protocol = ProtocolHTTPS
		if port == "" {
			port = "443"
		}
	case port == "":
		port = "80"
	}
	b.Endpoints = []Endpoint{{Address: net.JoinHostPort(u.Hostname(), port), Weight: 1}}
	if target = u.EscapedPath(); target == "" {
		target = "/"
	}
	if u.RawQuery != "" {
		target += "?" + u.RawQuery
	}
	return b, target, nil
}
