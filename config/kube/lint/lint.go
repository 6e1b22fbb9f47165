// Package lint says of the annotations that ingress-nginx and Traefik read
// whether weir does what they ask for. It looks at values, not at names alone:
// what asks for a default of weir's is done, though weir does not read it.
package lint

import (
	"cmp"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rating is how near weir comes to what an annotation asks for.
type Rating string

// The ratings, from best to worst.
const (
	Exact Rating = "exact" // weir does exactly that
	Near  Rating = "near"  // weir does something near; the finding says how it differs
	No    Rating = "no"    // weir does not do that, or not yet
)

// Finding is what there is to say of one annotation.
type Finding struct {
	Annotation string `json:"annotation"`
	Value      string `json:"value"`
	Rating     Rating `json:"rating"`
	// Why says how it differs, or what to do instead; mostly empty where it is exact.
	Why string `json:"why,omitempty"`
}

// The prefixes of annotations that are looked at.
const (
	nginxPrefix   = "nginx.ingress.kubernetes.io/"
	traefikPrefix = "traefik.ingress.kubernetes.io/"
)

// Object rates the annotations of an object, in their alphabetical order. Those
// that neither ingress-nginx nor Traefik reads are passed over.
func Object(o metav1.Object) (all []Finding) {
	c := context{}
	if i, ok := o.(*networkingv1.Ingress); ok {
		c.hasTLS = len(i.Spec.TLS) > 0
	}
	for name, value := range o.GetAnnotations() {
		if rating, why, ok := rate(name, value, c); ok {
			all = append(all, Finding{name, value, rating, why})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return cmp.Compare(a.Annotation, b.Annotation) })
	return all
}

// context is what else of an object decides.
type context struct{ hasTLS bool }

// A judge rates the values of one annotation. docs/migrate-*.md are made of
// them, by a test.
type judge struct {
	exact  []string // values that ask for what weir does anyway, in upper case or lower
	rating Rating   // of all others
	why    string
	look   func(value string, c context) (Rating, string) // in the place of all that
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

func rate(name, value string, c context) (rating Rating, why string, ok bool) {
	for prefix, judges := range map[string]map[string]judge{nginxPrefix: nginx, traefikPrefix: traefik} {
		key, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		judge, known := judges[general(key)]
		if !known {
			return No, "weir does not know this annotation, and neither does the documentation of whoever it is for; take it out, or look for a misspelling", true
		}
		rating, why = judge.rate(strings.TrimSpace(value), c)
		return rating, why, true
	}
	return "", "", false
}

// general is a name with n in the place of a number, as Traefik's lists have
// it, and in lower case, as Traefik reads it.
func general(name string) string {
	parts := strings.Split(strings.ToLower(name), ".")
	for i, p := range parts {
		if p != "" && strings.Trim(p, "0123456789") == "" {
			parts[i] = "n"
		}
	}
	return strings.Join(parts, ".")
}

// always is the same for every value.
func always(r Rating, why string) judge { return judge{rating: r, why: why} }

// unless is what the first values ask for exactly, and else what follows.
func unless(values string, r Rating, why string) judge {
	return judge{exact: strings.Split(values, "|"), rating: r, why: why}
}

// looking is for what more than the value decides, or parts of it.
func looking(f func(string, context) (Rating, string)) judge { return judge{look: f} }
