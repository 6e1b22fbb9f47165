package acme

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3"
	"github.com/mholt/acmez/v3/acme"
	"github.com/miekg/dns"

	"github.com/weirproxy/weir/config"
)

// HTTP01 returns the answer to a request for token at host (RFC 8555, section 8.3), if
// this process, or another one that shares its storage, is requesting a certificate for
// host. host has no port.
func (m *Manager) HTTP01(host, token string) (keyAuthorization string, ok bool) {
	ctx, cancel := context.WithTimeout(m.ctx, lookupTimeout)
	defer cancel()
	c, err := m.challenge(ctx, nameOfHost(host), acme.ChallengeTypeHTTP01)
	if err == nil && c.Token != token {
		err = errUnknown
	}
	m.Metrics.http[resultOf(err)].Inc()
	if err != nil {
		return "", false
	}
	return c.KeyAuthorization, true
}

// OrdersHTTP01 reports whether an entry has the host, or may obtain it on demand, and uses
// HTTP-01. It reads no storage. host has no port.
func (m *Manager) OrdersHTTP01(host string) bool {
	return slices.ContainsFunc(m.authoritiesOf(nameOfHost(host)), func(a *authority) bool {
		return slices.Contains(a.settings.Challenges, config.ChallengeHTTP01)
	})
}

// nameOfHost is nameOf for the host of a request, where an IPv6 address has brackets.
func nameOfHost(host string) string {
	if len(host) > 1 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return nameOf(host)
}

// TLSALPN01 returns the certificate for a handshake that offers only the protocol
// acme-tls/1 (RFC 8737), if this process, or another one that shares its storage, is
// requesting a certificate for the name.
func (m *Manager) TLSALPN01(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
	ctx, cancel := context.WithTimeout(m.ctx, lookupTimeout)
	defer cancel()
	c, err := m.challenge(ctx, nameOf(h.ServerName), acme.ChallengeTypeTLSALPN01)
	m.Metrics.tlsALPN[resultOf(err)].Inc()
	if err != nil {
		return nil, fmt.Errorf("cannot answer an ACME challenge for %q: %w", h.ServerName, err)
	}
	return acmez.TLSALPN01ChallengeCert(c)
}

var (
	errUnknown = errors.New("no certificate is being requested for that name")
	errBusy    = errors.New("too many ACME challenges came at the same time")
)

func resultOf(err error) string {
	switch {
	case err == nil:
		return answered
	case errors.Is(err, errUnknown):
		return unknown
	case errors.Is(err, errBusy):
		return refused
	}
	return errored
}

// challenge finds a challenge of this process in memory, or of another process in the
// storage. It reads the storage only for names of our entries, because any client can
// ask.
func (m *Manager) challenge(ctx context.Context, name, kind string) (acme.Challenge, error) {
	var first error = errUnknown
	for _, a := range m.authoritiesOf(name) {
		c, ok := certmagic.GetACMEChallenge(name)
		if ok && c.Type == kind {
			return c.Challenge, nil
		}
		stored, err := a.storedChallenge(ctx, name)
		switch {
		case err == nil && stored.Type == kind:
			return stored, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			first = err
		}
	}
	return acme.Challenge{}, first
}

// authoritiesOf returns the authorities whose entries have the name.
func (m *Manager) authoritiesOf(name string) (all []*authority) {
	m.mu.Lock()
	defer m.mu.Unlock()
	ip := addressOf(name)
	for _, a := range m.authorities {
		listed := *a.listed.Load()
		if listed[name] != nil || ip != "" && listed[ip] != nil || a.demand != nil && a.demand.matches(name) {
			all = append(all, a)
		}
	}
	return all
}

// addressOf returns the IP address whose reverse name is name, or "". In a TLS-ALPN-01
// handshake for an address, the SNI is the reverse name (RFC 8738, section 6).
func addressOf(name string) string {
	if !strings.HasSuffix(name, ".arpa") {
		return ""
	}
	labels := strings.Split(name, ".")
	slices.Reverse(labels)
	var text string
	switch {
	case len(labels) == 6 && labels[1] == "in-addr":
		text = strings.Join(labels[2:], ".")
	case len(labels) == 34 && labels[1] == "ip6":
		for i := 2; i < len(labels); i += 4 {
			text += ":" + strings.Join(labels[i:i+4], "")
		}
		text = text[1:]
	}
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return ""
	}
	if back, err := dns.ReverseAddr(ip.String()); err != nil || back != name+"." { // only the canonical spelling
		return ""
	}
	return ip.String()
}

// storedChallenge reads the challenge that certmagic left in the storage for other
// processes. It limits the number of concurrent reads, because strangers cause them.
func (a *authority) storedChallenge(ctx context.Context, name string) (c acme.Challenge, err error) {
	select {
	case a.m.lookups <- struct{}{}:
	default:
		return c, errBusy
	}
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	go func() { // a storage may be slow to notice that ctx has ended
		defer func() { <-a.m.lookups }()
		text, err := a.loadChallenge(ctx, name)
		done <- result{text, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return c, r.err
		}
		err = json.Unmarshal(r.text, &c)
		return c, err
	case <-ctx.Done():
		return c, ctx.Err()
	}
}

func (a *authority) loadChallenge(ctx context.Context, name string) ([]byte, error) {
	e, err := a.open()
	if err != nil {
		return nil, err
	}
	issuer := certmagic.StorageKeys.Safe(e.issuer.IssuerKey())
	return e.config.Storage.Load(ctx, path.Join("acme", issuer, "challenge_tokens", certmagic.StorageKeys.Safe(name)+".json"))
}
