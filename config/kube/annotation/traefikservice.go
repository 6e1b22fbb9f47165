package annotation

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// TraefikSettings is what the annotations of Traefik on a Service set for the requests to it.
type TraefikSettings struct {
	Scheme   string // http, https or h2c; empty: none
	OwnHost  bool   // the Service gets its own name as the Host, and not the client's
	Affinity Affinity
}

// traefikCookie is the default name of the cookie. Traefik derives its default from the name of the Service.
const traefikCookie = "weir"

// TraefikOf reads the annotations of a Service.
func TraefikOf(s *corev1.Service) (t TraefikSettings) {
	for _, name := range slices.Sorted(maps.Keys(s.Annotations)) {
		key, ok := strings.CutPrefix(name, Traefik)
		if !ok {
			continue
		}
		value := strings.TrimSpace(s.Annotations[name])
		is, _ := strconv.ParseBool(value)
		switch general(key) {
		case "service.serversscheme":
			if scheme := strings.ToLower(value); slices.Contains(traefikSchemes, scheme) {
				t.Scheme = scheme
			}
		case "service.passhostheader":
			given, err := strconv.ParseBool(value)
			t.OwnHost = err == nil && !given
		case "service.sticky.cookie":
			t.Affinity.Cookie = is
		case "service.sticky.cookie.name":
			if cookieNames(value) {
				t.Affinity.Name = value
			}
		case "service.sticky.cookie.path":
			if cookiePaths(value) {
				t.Affinity.Path = value
			}
		case "service.sticky.cookie.domain":
			if cookieDomains(value) {
				t.Affinity.Domain = value
			}
		case "service.sticky.cookie.secure":
			t.Affinity.Secure = is
		case "service.sticky.cookie.samesite":
			t.Affinity.SameSite = traefikSameSite[strings.ToLower(value)]
		case "service.sticky.cookie.maxage":
			if seconds, err := strconv.ParseInt(value, 10, 32); err == nil && seconds > 0 {
				t.Affinity.MaxAge = Lifetime{Given: true, Seconds: seconds}
			}
		}
	}
	if !t.Affinity.Cookie {
		t.Affinity = Affinity{}
		return t
	}
	if t.Affinity.Name == "" {
		t.Affinity.Name = traefikCookie
	}
	if t.Affinity.Path == "" {
		t.Affinity.Path = "/"
	}
	return t
}

var (
	traefikSchemes  = []string{"http", "https", "h2c"}
	traefikSameSite = map[string]string{"none": "None", "lax": "Lax", "strict": "Strict"}
)

// Values that weir writes into Set-Cookie: none adds an attribute or a header.
func cookieNames(value string) bool { return only(value, cookieWord) }
func cookiePaths(value string) bool {
	return strings.HasPrefix(value, "/") && only(value, cookieWord+"/%")
}
func cookieDomains(value string) bool { return only(value, cookieWord) }

const cookieWord = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

// only reports whether a text is not empty and has only these characters.
func only(text, characters string) bool { return text != "" && strings.Trim(text, characters) == "" }

// ExactPaths reports whether Traefik compares the paths of type ImplementationSpecific of an Ingress exactly.
func ExactPaths(i *networkingv1.Ingress) bool {
	return strings.TrimSpace(i.Annotations[Traefik+"router.pathmatcher"]) == "Path"
}

// Priority returns the priority of the routers that Traefik makes of an Ingress; 0: the annotation is missing, or
// not a number above 0.
func Priority(i *networkingv1.Ingress) int {
	n, err := strconv.Atoi(strings.TrimSpace(i.Annotations[Traefik+"router.priority"]))
	if err != nil || n < 0 {
		return 0
	}
	return n
}
