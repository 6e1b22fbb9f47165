package controller

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weirproxy/weir/config"
)

// Installation is an ingress-nginx that weir replaces.
type Installation struct {
	Flags     map[string]string // of the controller
	ConfigMap config.ObjectName // empty: none
	Data      map[string]string // of the ConfigMap
	Classes   []string          // the IngressClasses of the controller
	TCP       map[string]string // of the ConfigMap for raw TCP
	// SharesHosts means that Ingresses of several namespaces share a host.
	SharesHosts bool
}

// File returns the configuration of weir that replaces the flags of the controller and its ConfigMap, as YAML, and
// what its reader has to change in it before use. weir reads what is left of the ConfigMap itself.
func (in *Installation) File() (text string, changes []string) {
	w := &writer{in: in}
	w.listeners()
	w.proxyProtocol()
	w.certificates()
	w.policies()
	w.kubernetes()
	w.drain()
	w.logs()
	w.traces()
	return w.text.String(), w.changes
}

// written are the keys and flags that File takes over.
var written = []string{"use-http2", "http2-max-concurrent-streams", "client-header-timeout", "client-body-timeout", "keep-alive", "proxy-protocol-header-timeout", "ssl-protocols", "ssl-ciphers",
	"worker-shutdown-timeout", "enable-opentelemetry", "error-log-level", "disable-access-log", "disable-http-access-log", "log-format-upstream", "log-format-escape-json", "log-format-escape-none"}

// InFile reports whether File takes over a key or flag.
func InFile(name string) bool { return slices.Contains(written, name) }

// DefaultBackend is the Service of --default-backend-service. ok is false if there is none, or if the controller does not
// watch its namespace: ingress-nginx then responds itself.
func (in *Installation) DefaultBackend() (name config.ObjectName, ok bool) {
	name, err := config.ParseObjectName(in.Flags["default-backend-service"])
	watched := split(in.Flags["watch-namespace"])
	return name, err == nil && (len(watched) == 0 || slices.Contains(watched, name.Namespace))
}

// split returns the values in a text that are separated by commas.
func split(text string) (all []string) {
	for _, one := range strings.Split(text, ",") {
		if one = strings.TrimSpace(one); one != "" {
			all = append(all, one)
		}
	}
	return all
}

// writer writes a configuration, line by line.
type writer struct {
	in      *Installation
	text    strings.Builder
	changes []string
}

// line writes a line, and after it the key or flag from which it comes.
func (w *writer) line(indent int, text, from string) {
	if from != "" {
		from = " # " + from
	}
	fmt.Fprintf(&w.text, "%s%s\n", strings.Repeat("  ", indent), OneLine(text+from))
}

// OneLine returns the text without control characters: a value of an object adds no line.
func OneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

// plain returns a value that needs no quotes in YAML, or one with quotes.
func plain(value string) string {
	value = OneLine(value)
	if strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./-_=") == "" && value != "" {
		return value
	}
	return strconv.Quote(value)
}

// plainList is a YAML list of the values in a text that are separated by commas.
func plainList(text string) string {
	all := split(text)
	for i := range all {
		all[i] = plain(all[i])
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// is reports whether a key of the ConfigMap is true.
func (w *writer) is(key string) bool {
	is, err := strconv.ParseBool(strings.TrimSpace(w.in.Data[key]))
	return err == nil && is
}

// change asks the reader to change something.
func (w *writer) change(text string) {
	if !slices.Contains(w.changes, text) {
		w.changes = append(w.changes, text)
	}
}

// nobody is a network of which no packet comes: it stands for networks that only the reader knows.
const nobody = "192.0.2.0/24"

// trusted are the networks whose senders count, as a YAML list, and where they come from.
func (w *writer) trusted() (list, from string) {
	var networks []string
	for _, text := range strings.Split(w.in.Data["proxy-real-ip-cidr"], ",") {
		if n, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && n.Bits() == 0 {
			w.change("check the networks of proxy-real-ip-cidr: it also has " + n.String() + ", which trusts everybody, and which is left out")
		} else if err == nil {
			networks = append(networks, n.Masked().String())
		} else if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil {
			networks = append(networks, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	if len(networks) == 0 {
		w.changes = slices.DeleteFunc(w.changes, func(c string) bool { return strings.HasPrefix(c, "check the networks") })
		w.change("replace " + nobody + " by the networks of your load balancer: ingress-nginx trusts everybody (proxy-real-ip-cidr is 0.0.0.0/0), and weir does not")
		return "[" + nobody + "]", "CHANGE this"
	}
	return "[" + strings.Join(networks, ", ") + "]", "proxy-real-ip-cidr"
}

func (w *writer) listeners() {
	w.line(0, "listeners:", "")
	w.listener("web", "http", cmp.Or(w.in.Flags["http-port"], "80"))
	w.listener("websecure", "tls", cmp.Or(w.in.Flags["https-port"], "443"))
}

func (w *writer) listener(name, protocol, port string) {
	w.line(1, name+":", "")
	w.line(2, fmt.Sprintf("address: %q", ":"+port), "")
	w.line(2, "protocol: "+protocol, "")
	if w.is("use-proxy-protocol") {
		w.line(2, "proxy_protocol: lb", "use-proxy-protocol")
	}
	if w.is("use-forwarded-headers") || w.is("enable-real-ip") {
		list, from := w.trusted()
		w.line(2, "trust_forwarded: "+list, from)
		if w.is("use-forwarded-headers") {
			w.line(2, "trust: [for, proto, host, port]", "use-forwarded-headers")
		} else {
			w.line(2, "trust: [for]", "enable-real-ip")
		}
	}
	if protocol == "tls" {
		if given, ok := w.in.Data["use-http2"]; ok && off(given) {
			w.line(2, "http2: false", "use-http2")
		} else if n, ok := w.number("http2-max-concurrent-streams", 1, 1000); ok {
			w.line(2, fmt.Sprintf("http2: {max_streams: %d}", n), "http2-max-concurrent-streams")
		}
	}
	w.timeouts()
}

func (w *writer) timeouts() {
	var all, from []string
	for _, one := range []struct {
		key, weirs string
		most       int
	}{{"client-header-timeout", "request_head", 600}, {"client-body-timeout", "body_idle", 86400}, {"keep-alive", "keep_alive", 86400}} {
		if n, ok := w.number(one.key, 1, one.most); ok {
			all, from = append(all, fmt.Sprintf("%s: %ds", one.weirs, n)), append(from, one.key)
			if one.weirs == "body_idle" {
				all = append(all, "stream_idle: 1h") // otherwise body_idle would limit the silence of gRPC calls
			}
		}
	}
	if len(all) > 0 {
		w.line(2, "timeouts: {"+strings.Join(all, ", ")+"}", strings.Join(from, ", "))
	}
}

// number reads a key with a number of the ConfigMap.
func (w *writer) number(key string, least, most int) (int, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(w.in.Data[key]))
	return max(least, min(n, most)), err == nil && n > 0
}

// needsHeader reports whether an entry for raw TCP requires a PROXY header.
func (w *writer) needsHeader() bool {
	for _, value := range w.in.TCP {
		if parts := strings.Split(value, ":"); len(parts) > 2 && strings.EqualFold(parts[2], "PROXY") {
			return true
		}
	}
	return false
}

func (w *writer) proxyProtocol() {
	if !w.is("use-proxy-protocol") && !w.needsHeader() {
		return
	}
	list, from := w.trusted()
	w.line(0, "proxy_protocol:", "")
	w.line(1, "lb:", "")
	if d, err := time.ParseDuration(w.in.Data["proxy-protocol-header-timeout"]); err == nil && d >= time.Second {
		w.line(2, fmt.Sprintf("header_timeout: %s", d), "proxy-protocol-header-timeout")
	}
	w.line(2, "rules:", "all other peers are closed")
	w.line(3, "- {from: "+list+", header: require}", from)
}

// certificates writes a certificate only if there is no Secret: a listener with TLS needs one.
func (w *writer) certificates() {
	if _, err := config.ParseObjectName(w.in.Flags["default-ssl-certificate"]); err == nil {
		return
	}
	w.line(0, "certificates:", "")
	w.line(1, "- self_signed: {hosts: [weir.invalid]}", "for no host of an Ingress; weir refuses handshakes for hosts without a certificate")
}

// versions are the TLS versions of nginx, from the oldest to the newest.
var versions = []struct{ nginx, weir string }{{"TLSv1", "1.0"}, {"TLSv1.1", "1.1"}, {"TLSv1.2", "1.2"}, {"TLSv1.3", "1.3"}}

// suites are the names of OpenSSL of the cipher suites that weir has.
var suites = map[string]string{
	"ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
	"ECDHE-ECDSA-AES256-GCM-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
	"ECDHE-ECDSA-CHACHA20-POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	"ECDHE-ECDSA-AES128-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", "ECDHE-RSA-AES128-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
	"ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
	"ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
	"AES128-GCM-SHA256": "TLS_RSA_WITH_AES_128_GCM_SHA256", "AES256-GCM-SHA384": "TLS_RSA_WITH_AES_256_GCM_SHA384", "AES128-SHA256": "TLS_RSA_WITH_AES_128_CBC_SHA256",
	"AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA", "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA", "DES-CBC3-SHA": "TLS_RSA_WITH_3DES_EDE_CBC_SHA", "ECDHE-RSA-DES-CBC3-SHA": "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
}

func (w *writer) policies() {
	var lines []string
	if words := strings.Fields(w.in.Data["ssl-protocols"]); len(words) > 0 {
		var has []string
		for _, v := range versions {
			if slices.Contains(words, v.nginx) {
				has = append(has, v.weir)
			}
		}
		if len(has) > 0 {
			lines = append(lines, fmt.Sprintf("min_version: %q # ssl-protocols", has[0]), fmt.Sprintf("max_version: %q # ssl-protocols", has[len(has)-1]))
		}
	}
	var known, unknown []string
	for _, name := range strings.FieldsFunc(w.in.Data["ssl-ciphers"], func(r rune) bool { return r == ':' || r == ',' || r == ' ' }) {
		switch iana := suites[name]; {
		case iana != "" && !slices.Contains(known, iana):
			known = append(known, iana)
		case iana == "" && !strings.HasPrefix(name, "TLS_"): // those of TLS 1.3 need no name
			unknown = append(unknown, name)
		}
	}
	if len(known) > 0 {
		lines = append(lines, "cipher_suites: ["+strings.Join(known, ", ")+"] # ssl-ciphers")
	}
	if len(unknown) > 0 {
		w.change("weir has no suites for these words of ssl-ciphers: " + strings.Join(unknown, ", ") + "; check whether a client needs them")
	}
	if len(lines) == 0 {
		return
	}
	w.line(0, "tls_policies:", "")
	w.line(1, "default:", "")
	for _, l := range lines {
		w.line(2, l, "")
	}
}

func (w *writer) kubernetes() {
	flags := w.in.Flags
	w.line(0, "kubernetes:", "")
	switch class := cmp.Or(flags["ingress-class"], "nginx"); {
	case len(w.in.Classes) == 1:
		w.line(1, "class: "+plain(w.in.Classes[0]), "")
	case len(w.in.Classes) == 0:
		w.line(1, "class: "+plain(class), "--ingress-class")
	}
	w.line(1, "controller: "+plain(cmp.Or(flags["controller-class"], "k8s.io/ingress-nginx")), "--controller-class")
	if names := flags["watch-namespace"]; names != "" {
		w.line(1, "namespaces: "+plainList(names), "--watch-namespace")
	} else if labels := flags["watch-namespace-selector"]; labels != "" {
		if strings.ContainsAny(labels, "!()") || !strings.Contains(labels, "=") {
			w.change("write the labels of --watch-namespace-selector (" + labels + ") as namespace_labels: [label=value]")
		} else {
			w.line(1, "namespace_labels: "+plainList(strings.ReplaceAll(labels, "==", "=")), "--watch-namespace-selector")
		}
	}
	if n, err := config.ParseObjectName(flags["default-ssl-certificate"]); err == nil {
		w.line(1, "default_certificate: "+n.String(), "--default-ssl-certificate")
	}
	if w.in.ConfigMap != (config.ObjectName{}) {
		text, note := "config_map: "+w.in.ConfigMap.String(), "weir applies what is left in the ConfigMap"
		if n, ok := w.in.DefaultBackend(); ok {
			text += ", default_backend: " + n.String()
			note += "; --default-backend-service"
		}
		w.line(1, "ingress_nginx: {"+text+"}", note)
	} else if n, ok := w.in.DefaultBackend(); ok {
		w.change("if an Ingress has custom-http-errors, create an empty ConfigMap, and write ingress_nginx: {config_map: NAMESPACE/NAME, default_backend: " + n.String() + "}: the Service of --default-backend-service shows the errors then")
	}
	if n, err := config.ParseObjectName(flags["tcp-services-configmap"]); err == nil {
		policy := ""
		if w.needsHeader() {
			policy = ", proxy_protocol: lb"
		}
		w.line(1, "tcp: {config_map: "+n.String()+policy+"}", "--tcp-services-configmap")
	}
	if w.in.SharesHosts {
		w.line(1, "host_ownership: shared", "Ingresses of several namespaces share a host, and the chart's default is namespace")
	}
	w.line(1, "publish: none", "until weir has the traffic; then "+w.publish())
}

// publish is the key for the addresses that the controller publishes.
func (w *writer) publish() string {
	flags := w.in.Flags
	switch {
	case flags["publish-service"] != "":
		return "{service: NAMESPACE/NAME} of weir's own Service, in place of --publish-service"
	case flags["publish-status-address"] != "":
		return "{addresses: " + plainList(flags["publish-status-address"]) + "}"
	case flags["report-node-internal-ip-address"] == "true":
		return "{nodes: internal}"
	}
	return "{nodes: external}"
}

func (w *writer) drain() {
	var all, from []string
	if n, err := strconv.Atoi(w.in.Flags["shutdown-grace-period"]); err == nil && n > 0 {
		all, from = append(all, fmt.Sprintf("lame_duck: %ds", min(n, 3600))), append(from, "--shutdown-grace-period")
	}
	if d, err := time.ParseDuration(w.in.Data["worker-shutdown-timeout"]); err == nil && d >= time.Second {
		all, from = append(all, "timeout: "+min(d, 24*time.Hour).String()), append(from, "worker-shutdown-timeout")
	}
	if len(all) > 0 {
		w.line(0, "drain: {"+strings.Join(all, ", ")+"}", strings.Join(from, ", "))
	}
}

// levels are the levels of weir's log by those of nginx.
var levels = map[string]string{"debug": "debug", "info": "info", "notice": "info", "warn": "warn", "error": "error", "crit": "error", "alert": "error", "emerg": "error"}

func (w *writer) logs() {
	if level := levels[w.in.Data["error-log-level"]]; level != "" {
		w.line(0, "log: {level: "+level+"}", "error-log-level")
	}
	if w.is("disable-access-log") || w.is("disable-http-access-log") {
		return
	}
	format, escape := w.in.Data["log-format-upstream"], ""
	if format == "" {
		w.line(0, "access_log: {format: ingress-nginx}", "")
		return
	}
	template, missing := logTemplate(format)
	if template == "" {
		w.change("weir cannot write lines in the format of log-format-upstream; access_log has the default format of ingress-nginx: write a template, or use json")
		w.line(0, "access_log: {format: ingress-nginx}", "")
		return
	}
	if len(missing) > 0 {
		w.change("weir has no fields for these variables of log-format-upstream, and writes - in their place: " + strings.Join(missing, ", "))
	}
	switch {
	case w.is("log-format-escape-none"):
		escape = "log-format-escape-none"
	case w.is("log-format-escape-json") && !config.LogFormat(template).IsObject():
		escape = "log-format-escape-json"
	}
	if escape != "" {
		w.change("weir writes \", \\ and control characters in values as \\xHH, whatever " + escape + " says: check what reads the log")
	}
	w.line(0, "access_log: {format: "+plain(template)+", filter: {kinds: [http, upgrade]}}", "log-format-upstream")
}

// traces writes the receiver of spans, as the keys of OpenTelemetry have it.
func (w *writer) traces() {
	host := strings.Trim(strings.TrimSpace(w.in.Data["otlp-collector-host"]), "[]")
	if !w.is("enable-opentelemetry") && host == "" {
		return
	}
	port, ok := w.number("otlp-collector-port", 1, 65535)
	if !ok {
		port = 4317
	}
	url := "grpc://" + net.JoinHostPort(host, strconv.Itoa(port))
	if host == "" || strings.ContainsAny(host, "/?#@%\"\\ ${}") || strings.ContainsFunc(host, unicode.IsControl) {
		w.change("write traces: {otlp: {url: grpc://HOST:4317}}: enable-opentelemetry is true, but the ConfigMap has no host in otlp-collector-host")
		return
	}
	service, sample := plain(cmp.Or(strings.TrimSpace(w.in.Data["otel-service-name"]), "nginx")), w.sample()
	if !w.is("enable-opentelemetry") {
		w.change("ingress-nginx traces only Ingresses with enable-opentelemetry: \"true\"; weir traces all without \"false\". If you want that, write traces: {otlp: {url: " +
			strconv.Quote(url) + "}, service: " + service + ", sample: " + sample + "}")
		return
	}
	w.line(0, "traces:", "enable-opentelemetry")
	w.line(1, "otlp: {url: "+strconv.Quote(url)+"}", "otlp-collector-host, otlp-collector-port")
	w.line(1, "service: "+service, "otel-service-name")
	w.line(1, "sample: "+sample, "otel-sampler, otel-sampler-ratio")
}

// sample is the share of requests that ingress-nginx traces.
func (w *writer) sample() string {
	switch w.in.Data["otel-sampler"] {
	case "AlwaysOff":
		return "0"
	case "TraceIdRatioBased":
		if n, err := strconv.ParseFloat(strings.TrimSpace(w.in.Data["otel-sampler-ratio"]), 64); err == nil && n >= 0 && n <= 1 {
			return strconv.FormatFloat(n, 'f', -1, 64)
		}
		return "0.01"
	}
	return "1"
}
