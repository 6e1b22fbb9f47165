package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weirproxy/weir/tls/policy"
)

// The maximum number of lines of a list, unless the user asks for all lines.
const (
	listedClients  = 20
	listedFailures = 5
)

// print writes the report for a person.
func (r *tlsReport) print(w io.Writer, all bool) error {
	b := bufio.NewWriter(w)
	var nodes []string
	for _, n := range r.Nodes {
		nodes = append(nodes, n.Node)
	}
	fmt.Fprintf(b, "TLS clients of %s, seen since %s (%s)\n", strings.Join(nodes, ", "), moment(r.Since), since(r.At.Sub(r.Since)))
	for _, n := range r.Notes {
		fmt.Fprintf(b, "Note: %s.\n", n)
	}
	for _, p := range r.Policies {
		fmt.Fprintln(b)
		p.print(b, all)
	}
	fmt.Fprintln(b)
	r.printFailures(b, all)
	return b.Flush()
}

func (p *tlsPolicyReport) print(w io.Writer, all bool) {
	fmt.Fprintf(w, "POLICY %s (%s to %s", p.Name, p.MinVersion, strings.TrimPrefix(p.MaxVersion, "TLS "))
	if old := len(oldSuites(p.TLSPolicy)); old > 0 {
		fmt.Fprintf(w, ", %s", count(old, "old suite"))
	}
	if p.SHA1 {
		fmt.Fprint(w, ", SHA-1 signatures")
	}
	fmt.Fprintln(w, ")")
	for _, h := range p.Hosts {
		fmt.Fprintf(w, "  %s on %s (%s): %s, %d below TLS 1.3\n", h.name(), h.Listener, h.routes(), handshakes(h.Handshakes), h.Old)
	}
	if p.Handshakes == 0 {
		fmt.Fprintln(w, "  No handshake succeeded under this policy in this time, so there is no answer.")
		return
	}
	fmt.Fprintf(w, "  %s\n", p.shares())
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, c := range p.Changes {
		fmt.Fprintf(t, "  %s\t%s\n", c.question(), c.answer(p.Handshakes))
	}
	t.Flush()
	p.printClients(w, all)
}

// shares returns how often each version was negotiated, the newest version first.
func (p *tlsPolicyReport) shares() string {
	var parts []string
	for _, v := range []string{"TLS 1.3", "TLS 1.2", "TLS 1.1", "TLS 1.0"} {
		if n := p.Versions[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d (%s)", v, n, percent(n, p.Handshakes)))
		}
	}
	return strings.Join(parts, ", ")
}

func (c *tlsChange) question() string {
	switch {
	case c.MinVersion != "":
		return fmt.Sprintf("min_version: %q?", c.MinVersion)
	case c.NoSHA1:
		return "without sha1_signatures?"
	case len(c.Without) > 1:
		return fmt.Sprintf("without %d suites (*)?", len(c.Without))
	}
	return fmt.Sprintf("without %s?", c.Without[0])
}

func (c *tlsChange) answer(total uint64) string {
	var moved string
	if c.Moves > 0 {
		moved = fmt.Sprintf("; %s would use something else", handshakes(c.Moves))
	}
	if c.Breaks == 0 {
		if len(c.Without) > 0 && c.Moves == 0 {
			if len(c.Without) == 1 {
				return "yes, no client used it"
			}
			return "yes, no client used them"
		}
		return "yes, no client would be refused" + moved
	}
	return fmt.Sprintf("no, it would refuse %d of %s (%s): %s, %s, last seen %s%s", c.Breaks, handshakes(total), percent(c.Breaks, total),
		count(c.Networks, "network"), count(c.Fingerprints, "fingerprint"), moment(*c.Last), moved)
}

func (p *tlsPolicyReport) printClients(w io.Writer, all bool) {
	for _, c := range p.Changes {
		if len(c.Without) > 1 {
			fmt.Fprintf(w, "  (*) %s\n", strings.Join(c.Without, ",\n      "))
		}
	}
	if len(p.Clients) == 0 {
		return
	}
	fmt.Fprintln(w, "  Clients that would be refused, and why:")
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "    MIN_VERSION\tOR WITHOUT\tHANDSHAKES\tLAST SEEN (UTC)\tNETWORK\tHOST\tJA4")
	for i, c := range p.Clients {
		if i == listedClients && !all {
			break
		}
		fmt.Fprintf(t, "    %s\t%s\t%d\t%s\t%s\t%s\t%s\n", cmp.Or(c.BrokenBy, "-"), c.loses(), c.Count, minute(c.Last),
			network(c.Network), hostName(&c.SeenClients), c.JA4)
	}
	t.Flush()
	if n := len(p.Clients) - listedClients; n > 0 && !all {
		fmt.Fprintf(w, "    and %d more (--all, or --json)\n", n)
	}
}

func (c *tlsAffected) loses() string {
	var what []string
	if c.LosesWith != "" {
		what = append(what, c.LosesWith)
	}
	if c.NeedsSHA1 {
		what = append(what, "sha1_signatures")
	}
	return cmp.Or(strings.Join(what, ", "), "-")
}

// meanings describe the results in the words of docs/operations.md.
var meanings = map[string]string{
	policy.ResultTimeout:                    "not complete within timeouts.handshake",
	policy.ResultClientClosed:               "the client closed the connection without an alert",
	policy.ResultClientRefused:              "the client sent an alert; usually it does not trust the certificate",
	policy.ResultPlainHTTP:                  "plain HTTP on a TLS listener",
	policy.ResultProxyHeader:                "a PROXY header on a listener that accepts none",
	policy.ResultSSLv2Hello:                 "an SSLv2-format ClientHello; only a passthrough route without hosts can serve it",
	policy.ResultBadRecord:                  "not TLS, or a violation of the protocol",
	policy.ResultNoCommonVersion:            "no common version between min_version and max_version",
	policy.ResultNoCommonSuite:              "no common suite that fits the certificates, or no common curve",
	policy.ResultNoCommonSignature:          "the client accepts no signature that the certificate's key can make",
	policy.ResultNoCommonProtocol:           "ALPN: no common protocol",
	policy.ResultUnknownName:                "there is no certificate for the name",
	policy.ResultRevoked:                    "the client's certificate is revoked",
	policy.ResultRevocationUnknown:          "no valid revocation list covers the client's certificate",
	policy.ResultClientCertificate:          "the client's certificate is missing, or not acceptable",
	policy.ResultClientCertificateSHA1:      "the client's certificate, or its CA's, is signed with SHA-1 or MD5",
	policy.ResultClientCertificateSignature: "weir cannot verify the signature of the client's certificate: unusual RSA-PSS and others",
	policy.ResultClientCertificateKey:       "weir cannot verify the client certificate's kind of key: RSA-PSS, DSA and others",
	policy.ResultClientCertificateSerial:    "the client certificate's serial number is negative",
	policy.ResultOther:                      "see the log",
}

func (r *tlsReport) printFailures(w io.Writer, all bool) {
	if len(r.Failures) == 0 {
		fmt.Fprintln(w, "FAILED HANDSHAKES: none")
		return
	}
	fmt.Fprintln(w, "FAILED HANDSHAKES")
	for _, f := range r.Failures {
		fmt.Fprintf(w, "  %s (%s): %s, %s\n", f.Result, meanings[f.Result], handshakes(f.Handshakes), count(f.Networks, "network"))
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, "    NEWEST VERSION\tHANDSHAKES\tLAST SEEN (UTC)\tNETWORK\tPOLICY\tHOST\tJA4")
		for i, c := range f.Clients {
			if i == listedFailures && !all {
				break
			}
			offered := cmp.Or(c.Newest, "-")
			if c.OnlySHA1 {
				offered += ", SHA-1"
			}
			if len(c.OnlyMissing) > 0 {
				offered += ", only " + strings.Join(c.OnlyMissing, " and ")
			}
			fmt.Fprintf(t, "    %s\t%d\t%s\t%s\t%s\t%s\t%s\n", offered, c.Count, minute(c.Last), network(c.Network),
				cmp.Or(c.Policy, "-"), hostName(&c), cmp.Or(c.JA4, "-"))
		}
		t.Flush()
		if n := len(f.Clients) - listedFailures; n > 0 && !all {
			fmt.Fprintf(w, "    and %d more (--all, or --json)\n", n)
		}
	}
}

// noSNI replaces the host of clients that sent no SNI.
const noSNI = "(no SNI)"

func hostName(c *policy.SeenClients) string {
	if c.NoSNI() {
		return noSNI
	}
	return cmp.Or(c.Host, "(unknown host)")
}

func (h *tlsHost) name() string {
	switch {
	case h.Host != "":
		return h.Host
	case h.noSNI == h.Handshakes:
		return noSNI
	}
	return "(no SNI, or unknown host)"
}

func (h *tlsHost) routes() string {
	if h.Host == "" && len(h.Routes) == 0 {
		return "no route without hosts" // their requests may still match a route by their Host header
	}
	return routeNames(h.Routes)
}

func network(n string) string { return cmp.Or(n, "(unix socket)") }

func routeNames(names []string) string {
	switch {
	case len(names) == 0:
		return "no route now"
	case len(names) > 5:
		return fmt.Sprintf("routes %s and %d more", strings.Join(names[:5], ", "), len(names)-5)
	case len(names) == 1:
		return "route " + names[0]
	}
	return "routes " + strings.Join(names, ", ")
}

func handshakes(n uint64) string {
	if n == 1 {
		return "1 handshake"
	}
	return fmt.Sprintf("%d handshakes", n)
}

// percent never shows a small share as 0 %, and shows 100 % only if n equals of.
func percent(n, of uint64) string {
	p := 100 * float64(n) / float64(of)
	switch {
	case p < 0.1:
		return "under 0.1 %"
	case p > 99.9 && n < of:
		return "over 99.9 %"
	case p == 100:
		return "100 %"
	}
	return fmt.Sprintf("%.1f %%", p)
}

func moment(t time.Time) string { return minute(t) + " UTC" }

func minute(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") }

// since returns the time since an event, in at most two units.
func since(d time.Duration) string {
	var parts []string
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}} {
		if n := int(d / u.of); n > 0 && len(parts) < 2 {
			parts = append(parts, count(n, u.name))
			d -= time.Duration(n) * u.of
		}
	}
	if len(parts) == 0 {
		return "less than a minute"
	}
	return strings.Join(parts, " ")
}
