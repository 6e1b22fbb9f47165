package soak

import (
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
)

// Settings are the options of a run in its report. Durations are seconds.
type Settings struct {
	Targets        []string `json:"targets"`
	Protocol       string   `json:"protocol"` // empty: the default of the scheme
	TLS            bool     `json:"tls"`
	Host           string   `json:"host"`
	SNI            string   `json:"sni"`
	Cert           string   `json:"cert"`
	Key            string   `json:"key"`
	CA             string   `json:"ca"`
	Header         int      `json:"proxy_header"` // version; 0: no PROXY header
	Clients        []string `json:"clients"`
	From           []string `json:"from"`
	Connections    int      `json:"connections"`
	ConnectRate    float64  `json:"connect_rate_per_second"`
	Rate           float64  `json:"rate_per_second"` // 0: a closed loop
	Duration       float64  `json:"duration_seconds"`
	Churn          float64  `json:"churn_seconds"`
	Every          float64  `json:"every_seconds"`
	Timeout        float64  `json:"timeout_seconds"`
	Processes      int      `json:"processes"`
	Interval       float64  `json:"interval_seconds"`
	Path           string   `json:"path"`
	Fields         []string `json:"headers"` // secrets are removed
	Body           int      `json:"body_bytes"`
	Message        string   `json:"message"`
	GRPCStatus     []int    `json:"grpc_status"`
	Send           string   `json:"send"`
	Reply          string   `json:"reply"`
	Faults         []string `json:"faults"`
	Faulty         float64  `json:"share"`
	OpenBodies     float64  `json:"open_bodies"`
	SlowReaders    float64  `json:"slow_readers"`
	Expect         string   `json:"expect"`
	Status         []string `json:"status"`
	AddressField   string   `json:"address_header"`
	AddressPattern string   `json:"address_pattern"`
	MaxP99         float64  `json:"max_p99_seconds"` // 0: no threshold
	MaxErrors      string   `json:"max_errors"`      // empty: no threshold
}

func newSettings(o *Options) Settings {
	s := Settings{
		Targets: o.Targets, Protocol: o.Protocol, TLS: o.TLS, Host: o.Host, SNI: o.SNI, Cert: o.Cert, Key: o.Key, CA: o.CA,
		Header: o.Header, Clients: texts(o.Clients), From: texts(o.From), Connections: o.Connections,
		ConnectRate: float64(o.ConnectRate), Rate: float64(o.Rate), Duration: o.Duration.Seconds(), Churn: o.Churn.Seconds(),
		Every: o.Every.Seconds(), Timeout: o.Timeout.Seconds(), Processes: o.Processes, Interval: o.interval().Seconds(),
		Path: o.Path, Fields: []string{}, Body: o.Body, Message: o.Message, GRPCStatus: o.GRPCStatus, Send: string(o.Send), Reply: o.Reply,
		Faults: []string{}, Faulty: float64(o.Faulty), OpenBodies: float64(o.OpenBodies), SlowReaders: float64(o.SlowReaders),
		Expect: o.Expect, Status: o.Status, AddressField: o.AddressField, AddressPattern: o.AddressPattern,
		MaxP99: o.MaxP99.Seconds(), MaxErrors: o.MaxErrors.String(),
	}
	for _, f := range o.Fields {
		s.Fields = append(s.Fields, withoutSecret(f))
	}
	for _, f := range o.Faults {
		s.Faults = append(s.Faults, f.String())
	}
	return s
}

func texts(prefixes []netip.Prefix) []string {
	all := []string{}
	for _, p := range prefixes {
		all = append(all, p.String())
	}
	return all
}

// secretNames are parts of the names of HTTP headers whose values are secrets.
var secretNames = []string{"auth", "cookie", "token", "secret", "key", "password", "session"}

// withoutSecret returns a header for the report. It leaves out the value if the name
// suggests a secret.
func withoutSecret(header string) string {
	name, _, _ := strings.Cut(header, ":")
	if !slices.ContainsFunc(secretNames, func(part string) bool { return strings.Contains(strings.ToLower(name), part) }) {
		return header
	}
	return textproto.CanonicalMIMEHeaderKey(name) + ": (left out)"
}
