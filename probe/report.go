package probe

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Verdict says whether an endpoint reads PROXY headers.
type Verdict string

// The verdicts.
const (
	Requires Verdict = "requires"      // it serves only connections with a header
	Accepts  Verdict = "accepts"       // it serves connections with and without a header
	Not      Verdict = "does not read" // it serves only connections without a header
	Unknown  Verdict = "unknown"       // it served no connection, or reacted to none
)

// Protocol is what the port speaks behind the PROXY header.
type Protocol string

// The protocols.
const (
	TLS    Protocol = "tls"
	HTTP   Protocol = "http"
	Greets Protocol = "server speaks first" // SSH, SMTP and others
	Other  Protocol = "other"
)

// Report is the result of a probe.
type Report struct {
	Address string `json:"address"`
	// Connected is the address that the probe used. A name may have several.
	Connected string   `json:"connected"`
	Verdict   Verdict  `json:"verdict"`
	Protocol  Protocol `json:"protocol"`
	Reads     Reads    `json:"reads"`

	// Late is the reaction to a header that comes after Options.Wait, or to the silence before the
	// header. Waits means that the endpoint served the late header. LateSeconds is the time of the
	// reaction, from the beginning of the connection.
	Late        Reaction `json:"late"`
	LateSeconds float64  `json:"late_seconds"`
	// Stalled is the same for a header whose first part came without delay.
	Stalled    Reaction `json:"stalled"`
	Truncated  Reaction `json:"truncated"`           // the connection ended within the header
	Duplicated Reaction `json:"duplicated"`          // the same header twice
	Spoofed    Reaction `json:"spoofed"`             // a header with a client that does not exist
	Plaintext  Reaction `json:"plaintext,omitempty"` // an HTTP request on a TLS port
	// Malformed is the worst reaction to the malformed headers that the endpoint refuses, or to all
	// malformed headers if it refuses none. ServesMalformed names the malformed headers that it serves.
	Malformed       Reaction `json:"malformed"`
	ServesMalformed []string `json:"serves_malformed"`

	Tries       []Try   `json:"tries"`
	Connections int     `json:"connections"`
	Seconds     float64 `json:"seconds"`
}

// Reads are the kinds of headers that an endpoint reads.
type Reads struct {
	V1      bool `json:"v1"`
	V2      bool `json:"v2"`
	Unknown bool `json:"unknown"` // v1 UNKNOWN
	Local   bool `json:"local"`   // v2 LOCAL
	TLVs    bool `json:"tlvs"`
	CRC32C  bool `json:"crc32c"`
	// WrongCRC32C means that the endpoint serves a header with a wrong checksum.
	WrongCRC32C bool `json:"wrong_crc32c"`
}

// Try is one connection of a probe.
type Try struct {
	Header   string   `json:"header"`
	Reaction Reaction `json:"reaction"`
	Seconds  float64  `json:"seconds"`         // until the reaction; 0: there was none
	Reply    string   `json:"reply,omitempty"` // the reply in a few words
}

// report makes the report of the first tries, with the verdict.
func (p *prober) report() *Report {
	f := &p.found
	r := &Report{Address: p.Address, Connected: p.at, Protocol: f.protocol, ServesMalformed: []string{}, Reads: Reads{V1: f.reads["v1"], V2: f.reads["v2"]}}
	switch {
	case f.version > 0 && f.reads["none"]:
		r.Verdict = Accepts
	case f.version > 0:
		r.Verdict = Requires
	case f.reads["none"]:
		r.Verdict = Not
	default:
		r.Verdict = Unknown
	}
	return r
}

func (r *Report) finish(p *prober, begun time.Time) {
	p.mu.Lock()
	r.Tries = p.tries
	p.mu.Unlock()
	r.Connections = int(p.connections.Load())
	r.Seconds = time.Since(begun).Round(time.Millisecond).Seconds()
}

// worse returns the worse of two reactions.
func worse(a, b Reaction) Reaction {
	order := []Reaction{"", Closes, Waits, Alerts, Answers}
	if slices.Index(order, a) > slices.Index(order, b) {
		return a
	}
	return b
}

// Print writes the report for people. Every reaction is one line.
func (r *Report) Print(w io.Writer) {
	verdict := map[Verdict]string{
		Requires: "requires a PROXY header",
		Accepts:  "accepts connections with and without a PROXY header",
		Not:      "does not read PROXY headers",
		Unknown:  "served no connection, with or without a PROXY header",
	}[r.Verdict]
	fmt.Fprint(w, r.Address)
	if r.Connected != r.Address {
		fmt.Fprintf(w, " (at %s)", r.Connected)
	}
	fmt.Fprintf(w, " %s", verdict)
	if r.Verdict != Unknown {
		fmt.Fprintf(w, " (%s)", r.Protocol)
	}
	fmt.Fprintln(w)
	if r.Verdict == Requires || r.Verdict == Accepts {
		fmt.Fprintf(w, "reads: %s\n", r.Reads)
	}
	fmt.Fprintln(w)
	for _, t := range r.Tries {
		line := fmt.Sprintf("%-42s %-8s", strings.Replace(t.Header, "none", "no PROXY header", 1), t.Reaction)
		if t.Seconds > 0.1 {
			line += fmt.Sprintf(" %7.3f s", t.Seconds)
		}
		if t.Reply != "" {
			line += "  " + t.Reply
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	fmt.Fprintf(w, "\n%d connections in %.1f s\n", r.Connections, r.Seconds)
}

// String lists what is read.
func (r Reads) String() string {
	var kinds []string
	for _, k := range []struct {
		name string
		read bool
	}{{"v1", r.V1}, {"v1 UNKNOWN", r.Unknown}, {"v2", r.V2}, {"v2 LOCAL", r.Local}, {"TLVs", r.TLVs}} {
		if k.read {
			kinds = append(kinds, k.name)
		}
	}
	switch {
	case r.CRC32C && r.WrongCRC32C:
		kinds = append(kinds, "CRC32C (a wrong one is served)")
	case r.CRC32C:
		kinds = append(kinds, "CRC32C (a wrong one is refused)")
	}
	return strings.Join(kinds, ", ")
}
