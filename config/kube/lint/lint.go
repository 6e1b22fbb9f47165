// Package lint rates the annotations of ingress-nginx and Traefik by how well weir
// supports them. It looks at values as well as names: an annotation that asks for a
// default of weir is supported, although weir does not read it.
package lint

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rating is how well weir supports an annotation.
type Rating string

// The ratings, from best to worst.
const (
	Exact Rating = "exact" // weir does exactly that
	Near  Rating = "near"  // weir does something similar; the finding says how it differs
	No    Rating = "no"    // weir does not support it, or not yet
)

// guard is No for an annotation that restricts access, or may: weir answers 503.
const guard Rating = "guard"

// Finding is the rating of one annotation.
type Finding struct {
	Annotation string `json:"annotation"`
	Value      string `json:"value"`
	Rating     Rating `json:"rating"`
	// Refused means that weir answers 503 because of the annotation; otherwise everybody
	// would have access.
	Refused bool `json:"refused,omitempty"`
	// Why is how weir differs, or what to do instead; usually empty if the rating is
	// exact.
	Why string `json:"why,omitempty"`
}

// The prefixes of the annotations.
const (
	nginxPrefix   = "nginx.ingress.kubernetes.io/"
	traefikPrefix = "traefik.ingress.kubernetes.io/"
)

// Object rates the annotations of an object, in alphabetical order. It skips
// annotations without one of the prefixes.
func Object(o metav1.Object) (all []Finding) {
	c := context{}
	if i, ok := o.(*networkingv1.Ingress); ok {
		c.hasTLS = len(i.Spec.TLS) > 0
		c.paths = pathsOf(i)
	}
	_, isService := o.(*corev1.Service)
	for name, value := range o.GetAnnotations() {
		switch rating, why, ok := rate(name, value, c); {
		case !ok, isService && strings.HasPrefix(name, nginxPrefix): // ingress-nginx reads only annotations of Ingresses
		case rating == guard:
			all = append(all, Finding{name, value, No, true, why})
		default:
			all = append(all, Finding{name, value, rating, false, why})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return cmp.Compare(a.Annotation, b.Annotation) })
	return all
}

// Undone names the annotations that weir does not support: the guards, for which it
// answers 503, and all others.
func Undone(o metav1.Object) (guards, others []string) {
	for _, f := range Object(o) {
		switch {
		case f.Refused:
			guards = append(guards, f.Annotation)
		case f.Rating == No:
			others = append(others, f.Annotation)
		}
	}
	return guards, others
}

// context is the rest of the object that a rating depends on.
type context struct {
	hasTLS bool
	paths  paths
}

// paths is the kind of regular expressions that the paths of an Ingress would be.
type paths int

const (
	special   paths = iota // a path has special characters of regular expressions
	onlyPlain              // no path has special characters
	onlyRoot               // all paths are "/"
)

func pathsOf(i *networkingv1.Ingress) paths {
	kind := onlyRoot
	for _, rule := range i.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			switch {
			case strings.ContainsAny(p.Path, `.*+?()[]{}|^$\`):
				return special
			case p.Path != "/" && p.Path != "":
				kind = onlyPlain
			}
		}
	}
	return kind
}

// A judge rates the values of one annotation. A test generates the tables in
// docs/migrate-*.md from the judges.
type judge struct {
	exact  []string // values that ask for a default of weir, in upper or lower case
	rating Rating   // of all other values
	why    string
	look   func(value string, c context) (Rating, string) // replaces the fields above
}

func (j judge) rate(value string, c context) (Rating, string) {
	switch {
	case j.look != nil:
		return j.look(value, c)
	case slices.ContainsFunc(j.exact, func(e string) bool { return strings.EqualFold(e, value) }):
		return Exact, ""
	}
	return j.rating, j.why
}

const unknown = "neither weir nor the documentation of the controller knows this annotation; check its spelling, or remove it"

func rate(name, value string, c context) (rating Rating, why string, ok bool) {
	judges := nginx
	key, ok := strings.CutPrefix(name, nginxPrefix)
	if !ok {
		judges = traefik
		if key, ok = strings.CutPrefix(name, traefikPrefix); !ok {
			return "", "", false
		}
	}
	judge, known := judges[general(key)]
	value = strings.TrimSpace(value)
	switch {
	case value == "" && strings.HasPrefix(key, "auth-"):
		rating, why = Exact, "" // a template left the value empty, so it has no effect
	case known:
		rating, why = judge.rate(value, c)
	case strings.HasPrefix(key, "auth-"):
		rating, why = guard, refused // an annotation of a later ingress-nginx, or of Traefik 1
	default:
		rating, why = No, unknown
	}
	return rating, why, true
}

// general is the name in lower case, as Traefik reads it, with n in place of a number.
func general(name string) string {
	parts := strings.Split(strings.ToLower(name), ".")
	for i, p := range parts {
		if p != "" && strings.Trim(p, "0123456789") == "" {
			parts[i] = "n"
		}
	}
	return strings.Join(parts, ".")
}

// always has the same rating for every value.
func always(r Rating, why string) judge { return judge{rating: r, why: why} }

// unless rates the given values (separated by a bar) as exact, and all others as r.
func unless(values string, r Rating, why string) judge {
	return judge{exact: strings.Split(values, "|"), rating: r, why: why}
}

// looking rates by a function, which sees the value and the object.
func looking(f func(string, context) (Rating, string)) judge { return judge{look: f} }
