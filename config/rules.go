package config

import (
	"crypto/tls"
	"encoding/json"
)

// The rules are conditions between the keys of one section, for the schema. Each repeats a
// check of weir, so that an editor reports the error too. A rule must never refuse a file
// that weir accepts. Conditions between sections are beyond a schema.

// has matches a mapping with all of the keys.
func has(keys ...string) *schema { return &schema{Type: "object", Required: keys} }

// hasAny matches a mapping with at least one of the keys.
func hasAny(keys ...string) *schema { return &schema{AnyOf: each(keys)} }

// hasOne matches a mapping with exactly one of the keys.
func hasOne(keys ...string) *schema { return &schema{OneOf: each(keys)} }

// lacks matches a mapping without any of the keys.
func lacks(keys ...string) *schema { return &schema{Not: hasAny(keys...)} }

func each(keys []string) (all []*schema) {
	for _, k := range keys {
		all = append(all, has(k))
	}
	return all
}

// apart matches a mapping without both keys.
func apart(a, b string) *schema { return &schema{Not: has(a, b)} }

// together matches a mapping with both keys or with neither.
func together(a, b string) *schema {
	return &schema{DependentRequired: map[string][]string{a: {b}, b: {a}}}
}

// with matches a mapping whose key, if it is there, matches s. The table of keys suggests the
// key. An editor that took s for a suggestion too would write a wrong value.
func with(key string, s *schema) *schema {
	condition := *s
	condition.DoNotSuggest = true
	return &schema{Properties: properties{{key, &condition}}}
}

// whose matches a mapping that has the key, with a value that matches s.
func whose(key string, s *schema) *schema {
	all := with(key, s)
	all.Type, all.Required = "object", []string{key}
	return all
}

// is matches a mapping that has the key with one of the values, written out.
func is(key string, values ...any) *schema { return whose(key, &schema{Enum: values}) }

// isNot matches a mapping that does not have the key with one of the values.
func isNot(key string, values ...any) *schema { return &schema{Not: is(key, values...)} }

// mayBe matches a mapping whose key, if it is there, has one of the values, or comes from
// the environment.
func mayBe(key string, values ...any) *schema { return with(key, orVariable(&schema{Enum: values})) }

// when is the rule that whatever matches a also matches all of b.
func when(a *schema, b ...*schema) *schema {
	if len(b) == 1 {
		return &schema{If: a, Then: b[0]}
	}
	return &schema{If: a, Then: &schema{AllOf: b}}
}

var listenerRules = []*schema{
	when(is("protocol", "tcp"), lacks("public_port", "trust_forwarded", "trust", "drop_headers", "keep_headers", "lenient", "http2", "tls_policy")),
	when(is("protocol", "http"), lacks("tls_policy"), isNot("http2", true), with("http2", isNot("offer", true))),
	when(is("protocol", "tls"), with("http2", isNot("prior_knowledge", true))),
}

// forForwarded are the keys that have no effect if weir redirects all requests of a route.
var forForwarded = []string{
	"clients",
	"rate_limit",
	"in_flight",
	"auth",
	"satisfy",
	"max_body",
	"request",
	"rewrite",
	"compress",
	"mirror",
	"timeouts",
	"retries",
}

func newRouteRules() []*schema {
	forRequests := make([]string, len(requestKeys))
	for i, k := range requestKeys {
		forRequests[i] = k.name
	}
	return []*schema{
		hasAny("backend", "backends", "redirect", "respond"),
		apart("backend", "backends"),
		when(whose("redirect", hasAny("to", "host", "prefix", "path")), lacks("backend", "backends")),
		when(has("respond"), lacks("backend", "backends", "redirect", "max_lifetime", "tunnel_idle", "request", "rewrite", "compress", "mirror", "timeouts", "retries")),
		when(has("first_bytes"), lacks("hosts", "paths", "match", "tls", "tls_policy"), lacks(forRequests...)),
		when(has("silent_after"), has("first_bytes")),
		when(is("tls", "passthrough"), lacks("paths", "match", "tls_policy"), lacks(forRequests...)),
		when(lacks("backend", "backends", "respond"), lacks("max_lifetime", "tunnel_idle"), lacks(forForwarded...)),
		when(is("satisfy", "any"), has("auth", "clients"), with("clients", has("allow"))),
	}
}

var redirectRules = []*schema{apart("prefix", "path"), when(has("to"), lacks("scheme", "host", "port", "prefix", "path")),
	when(lacks("host", "prefix", "path"), isNot("scheme", "http"))}

var rewriteRules = []*schema{hasAny("prefix", "path", "host"), apart("prefix", "path")}

var editsRules = []*schema{hasAny("set", "add", "remove")}

var matchRules = []*schema{hasAny("methods", "headers", "query", "cookies", "clients")}

var hstsRules = []*schema{
	when(is("preload", true), has("include_subdomains"), mayBe("include_subdomains", true)),
}

var backendRules = []*schema{
	when(has("tls"), has("protocol"), mayBe("protocol", "https", "grpc", "tcp")),
	when(has("http2"), has("protocol"), mayBe("protocol", "https")),
	when(has("lenient"), mayBe("protocol", "http", "https")),
	when(hasAny("host", "max_interim_responses"), isNot("protocol", "tcp")),
	when(has("sticky"), isNot("protocol", "tcp")),
	when(is("protocol", "https", "grpc"), with("tls", lacks("alpn"))),
}

var (
	healthCheckRules = []*schema{hasOne("http", "grpc", "tcp")}
	ejectionRules    = []*schema{when(hasAny("minimum", "within"), has("share"))}
	backendTLSRules  = append(offerRules(), together("cert", "key"))
	certificateRules = []*schema{together("cert", "key"), hasOne("cert", "self_signed", "acme"), apart("self_signed", "ocsp")}
	policyRules      = append(offerRules(), apart("from", "client_auth"), curveRule())
	clientAuthRules  = []*schema{has("ca")}
	onDemandRules    = []*schema{hasAny("ask", "hosts")}
	kubernetesRules  = []*schema{apart("namespaces", "namespace_labels"),
		when(whose("gateways", whose("addresses", has("shared"))), has("publish"), isNot("publish", "none"))}
	publishRules = []*schema{hasOne("service", "addresses", "nodes")}

	gatewayAddressesRules = []*schema{hasOne("pool", "service", "shared")}
)

// acmeRules: staging: true stands for a directory. Only DNS-01 proves the control of
// wildcards, and it cannot be combined with others.
var acmeRules = []*schema{
	when(is("staging", true), lacks("directory")),
	when(contains("challenges", &schema{Const: "dns-01"}), has("dns"), with("challenges", &schema{MaxItems: 1})),
	when(has("dns", "challenges"), contains("challenges", orVariable(&schema{Const: "dns-01"}))),
	when(contains("hosts", &schema{Type: "string", Pattern: `^\*\.`}), has("dns")),
}

// adminRules: an address with which other machines can reach the port needs a token or
// client certificates.
var adminRules = []*schema{
	apart("token", "token_file"),
	when(whose("address", &schema{Type: "string", Pattern: `^[0-9.]*:[0-9]+$`, Not: &schema{Pattern: `^127\.`}}),
		&schema{AnyOf: []*schema{has("token"), has("token_file"), whose("tls", has("client_ca"))}}),
}

// contains matches a mapping that has the key with a list in which an element matches s.
func contains(key string, s *schema) *schema {
	return whose(key, &schema{Type: "array", Contains: s})
}

// versions returns versions of TLS as a file may have them: texts and numbers.
func versions(names ...string) (all []any) {
	for _, n := range names {
		all = append(all, n, json.Number(n))
	}
	return all
}

// offerRules repeats checkOffer.
func offerRules() []*schema {
	old := suitesFor(tls.VersionTLS10) // the same suites work with TLS 1.1
	works := orVariable(&schema{Enum: old})
	return []*schema{
		when(is("max_version", versions("1.0")...), has("min_version"), mayBe("min_version", versions("1.0")...)),
		when(is("max_version", versions("1.1")...), has("min_version"), mayBe("min_version", versions("1.0", "1.1")...)),
		when(is("max_version", versions("1.2")...), isNot("min_version", versions("1.3")...)),
		when(is("min_version", versions("1.3")...), lacks("cipher_suites"), isNot("sha1_signatures", true)),
		when(is("max_version", versions("1.0", "1.1")...), with("cipher_suites", &schema{Items: works}), isNot("sha1_signatures", true)),
		when(is("min_version", versions("1.0", "1.1")...), with("cipher_suites", &schema{Contains: works})),
	}
}

// suitesFor returns the names of the suites that work with a version.
func suitesFor(version uint16) (names []any) {
	for _, s := range suites {
		if worksWith(s, version) {
			names = append(names, s.Name)
		}
	}
	return names
}

// curveRule repeats checkCurves.
func curveRule() *schema {
	var old []any
	for _, c := range curves {
		if !c.only13 {
			old = append(old, c.name)
		}
	}
	only13 := is("min_version", versions("1.3")...)
	fromEnvironment := whose("min_version", &schema{Ref: "#/$defs/" + variable})
	return &schema{AnyOf: []*schema{only13, fromEnvironment, with("curves", &schema{Contains: orVariable(&schema{Enum: old})})}}
}
