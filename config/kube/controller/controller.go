// Package controller reads the settings of ingress-nginx's controller: the keys of its ConfigMap and the flags of
// its command line. One table rates each of them, as the package annotation rates annotations. Conversions apply a
// ConfigMap to Ingresses, weir lint prints the ratings, and weir migrate prints what to write in weir's
// configuration.
//
// Keys that decide whom to trust are never applied to routes: an author of the ConfigMap would choose whose
// X-Forwarded-For counts.
package controller

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

// Settings are what a ConfigMap of the controller sets. They never change.
type Settings struct {
	// Routes of Ingresses. HSTS is nil if the ConfigMap turns it off.
	HSTS *config.HSTS
	// RedirectStatus is the status of redirects to https.
	RedirectStatus int
	// Hide are HTTP headers that weir removes from responses.
	Hide []string
	// Deny are the networks of clients that weir refuses.
	Deny []netip.Prefix
	// SetHeaders and AddHeaders are the values of proxy-set-headers and add-headers: each names a ConfigMap of HTTP
	// headers for requests to Services, and for responses. Empty: none.
	SetHeaders, AddHeaders string
	// OriginalURI: Services get X-Original-URI. Compress: weir compresses responses.
	OriginalURI, Compress bool
	// Blocks are directives of nginx that refuse requests.
	Blocks string

	defaults map[string]string // the values of annotations, by their names, for Ingresses without them
	auth     map[string]string // the same for auth-url and its family, which an Ingress overrides as a whole
	keys     map[string]string // for families of annotations: see annotation.OfController
	location string            // a snippet for each location, after that of the Ingress
	server   string            // the same for servers
	closes   []string          // keys because of which weir answers 503 for all Ingresses
}

// Rated is a key of a ConfigMap, or a flag, and how weir treats it.
type Rated struct {
	Name, Value string
	Rating      annotation.Rating
	// Refused: weir answers 503 for Ingresses because of the key, as it does for such an annotation.
	Refused bool
	// Trust: the key decides whom to trust. weir never applies it; its own configuration has to say it.
	Trust bool
	// Why is how weir differs, or what to do.
	Why string
}

// Read reads the data of the ConfigMap; nil has the controller's defaults. A value that the controller cannot read
// counts as if it were not there.
func Read(data map[string]string) *Settings {
	s := &Settings{RedirectStatus: 308, defaults: map[string]string{}, auth: map[string]string{}, keys: map[string]string{annotation.AllowedHeaders: ""}}
	for name, value := range defaultValues {
		s.take(name, value)
	}
	for _, name := range slices.Sorted(maps.Keys(data)) {
		s.take(name, strings.TrimSpace(data[name]))
	}
	s.HSTS = hsts(data)
	if s.auth["auth-url"] == "" {
		s.auth = nil
	}
	return s
}

// Without returns the settings without the defaults of some annotations, which weir's configuration sets itself.
func (s *Settings) Without(names map[string]bool) *Settings {
	n := *s
	n.defaults = maps.Clone(s.defaults)
	maps.DeleteFunc(n.defaults, func(name, _ string) bool { return names[name] })
	return &n
}

// WithDefaultBackend returns the settings with the value of --default-backend-service, the name of a Service.
func (s *Settings) WithDefaultBackend(service string) *Settings {
	n := *s
	n.keys = maps.Clone(s.keys)
	n.keys[annotation.ErrorsOfAll] = service
	return &n
}

// IsUnsupported reports whether weir does nothing for the key or flag.
func (r *Rated) IsUnsupported() bool { return r.Rating == annotation.No }

// take stores the value of one key.
func (s *Settings) take(name, value string) {
	k, known := keys[name]
	switch {
	case !known:
	case k.annotation != "":
		s.defaults[k.annotation] = k.converted(value)
	case k.auth != "":
		s.auth[k.auth] = value
	case k.set != nil:
		k.set(value, s)
	case k.passed:
		s.keys[name] = value
	case k.refuses != nil && k.refuses(value):
		s.closes = append(s.closes, name)
	}
}

// hsts returns what the keys hsts, hsts-max-age, hsts-include-subdomains and hsts-preload set.
func hsts(data map[string]string) *config.HSTS {
	on := func(name string, byDefault bool) bool {
		if is, err := strconv.ParseBool(strings.TrimSpace(data[name])); err == nil {
			return is
		}
		return byDefault
	}
	seconds, err := strconv.ParseInt(cmp.Or(strings.TrimSpace(data["hsts-max-age"]), "31536000"), 10, 32)
	if err != nil || seconds < 0 || !on("hsts", true) {
		return nil
	}
	return &config.HSTS{MaxAge: time.Duration(seconds) * time.Second, IncludeSubdomains: on("hsts-include-subdomains", true), Preload: on("hsts-preload", false)}
}

// Apply returns the Ingress as the controller reads it: with the annotations that the ConfigMap sets for all
// Ingresses. The Ingress itself is not changed.
func (s *Settings) Apply(i *networkingv1.Ingress) *networkingv1.Ingress {
	n := *i
	n.Annotations = make(map[string]string, len(i.Annotations)+len(s.defaults)+len(s.keys))
	has := map[string]bool{}
	for name, value := range i.Annotations {
		if annotation.IsOfController(name) {
			continue // only a ConfigMap sets these
		}
		if annotation.IsUnset(name, value) {
			continue // the default applies
		}
		n.Annotations[name] = value
		if short, ok := strings.CutPrefix(name, annotation.Nginx); ok {
			has[strings.ToLower(short)] = true
		}
	}
	add := func(name, value string) {
		if !has[name] && value != "" {
			n.Annotations[annotation.Nginx+name] = value
			n.Annotations[annotation.OfController+name] = value
		}
	}
	for name, value := range s.defaults {
		if name == "whitelist-source-range" && has["allowlist-source-range"] {
			continue // the same annotation by its other name
		}
		add(name, value)
	}
	for name, value := range s.keys {
		n.Annotations[annotation.OfController+name] = value
	}
	if s.auth != nil && !has["auth-url"] && !off(i.Annotations[annotation.Nginx+"enable-global-auth"]) {
		for name := range has { // ingress-nginx takes all of the family from one place
			if strings.HasPrefix(name, "auth-") && global[name] {
				delete(n.Annotations, annotation.Nginx+name)
				has[name] = false
			}
		}
		for name, value := range s.auth {
			add(name, value)
		}
	}
	for _, name := range s.closes {
		n.Annotations[annotation.Closes(name)] = ""
	}
	s.join(&n, "configuration-snippet", s.location)
	s.join(&n, "server-snippet", s.server)
	return &n
}

// Keyed returns the Ingress with the keys of the ConfigMap that decide how its own annotations are read. The Ingress
// itself is not changed.
func (s *Settings) Keyed(i *networkingv1.Ingress) *networkingv1.Ingress {
	n := *i
	n.Annotations = maps.Clone(i.Annotations)
	maps.DeleteFunc(n.Annotations, func(name, _ string) bool { return annotation.IsOfController(name) })
	for name, value := range s.keys {
		if len(i.Annotations) > 0 {
			n.Annotations[annotation.OfController+name] = value
		}
	}
	return &n
}

// join appends a snippet of the ConfigMap to that of the Ingress.
func (s *Settings) join(i *networkingv1.Ingress, name, text string) {
	if text == "" {
		return
	}
	own := i.Annotations[annotation.Nginx+name]
	i.Annotations[annotation.Nginx+name] = strings.TrimPrefix(own+"\n"+text, "\n")
	i.Annotations[annotation.OfController+name] = text
}

func off(value string) bool {
	is, err := strconv.ParseBool(strings.TrimSpace(value))
	return err == nil && !is
}

// KeysFor returns the keys of a ConfigMap that set an annotation of Ingresses, in alphabetical order. name is the
// annotation without its prefix, or a key, which is returned itself.
func KeysFor(data map[string]string, name string) (all []string) {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		if k := keys[key]; k != nil && slices.Contains([]string{k.annotation, k.auth, k.snippet}, name) {
			all = append(all, key)
		}
	}
	if all == nil {
		all = []string{name}
	}
	return all
}

// Rate rates the keys of a ConfigMap, in alphabetical order.
func Rate(data map[string]string) (all []Rated) {
	for _, name := range slices.Sorted(maps.Keys(data)) {
		all = append(all, rateKey(name, strings.TrimSpace(data[name])))
	}
	return all
}

func rateKey(name, value string) Rated {
	r := Rated{Name: name, Value: value}
	k, known := keys[name]
	switch {
	case !known:
		r.Rating, r.Why = annotation.No, "ingress-nginx does not know this key either; check its spelling, or remove it"
	case k.annotation != "" || k.auth != "" || k.snippet != "":
		r = k.byAnnotation(r)
	default:
		r.Trust = k.trust
		if r.Rating, r.Why = k.rating, k.why; slices.ContainsFunc(k.exact, func(e string) bool { return strings.EqualFold(e, value) }) {
			r.Rating, r.Why, r.Trust = annotation.Exact, "", false
		} else if k.refuses != nil && k.refuses(value) {
			r.Rating, r.Refused = annotation.No, true
			if k.wrong != nil {
				r.Why = fmt.Sprintf("weir does not support %v; write it in another way, or remove it", k.wrong(value))
			}
		}
	}
	return r
}

// byAnnotation rates the key as the annotation whose default it is.
func (k *key) byAnnotation(r Rated) Rated {
	name := cmp.Or(k.annotation, k.auth, k.snippet)
	i, value := &networkingv1.Ingress{}, k.converted(r.Value)
	i.Annotations = map[string]string{annotation.Nginx + name: value, annotation.OfController + name: value}
	for _, a := range annotation.Rate(i) {
		r.Rating, r.Refused, r.Why = a.Rating, a.Guard, cmp.Or(k.why, a.Why)
	}
	if r.Rating == annotation.Exact {
		r.Why = ""
	}
	return r
}
