// Package lint says of the annotations that ingress-nginx and Traefik read
// whether weir does what they ask for. It looks at values, not at names alone:
// what asks for a default of weir's is done, though weir does not read it.
package lint

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// guard is No of what keeps clients out, or may: weir refuses everybody there.
const guard Rating = "guard"

// Finding is what there is to say of one annotation.
type Finding struct {
	Annotation string `json:"annotation"`
	Value      string `json:"value"`
	Rating     Rating `json:"rating"`
	// Refused says that weir answers 503 where the annotation is, or everybody would get in.
	Refused bool `json:"refused,omitempty"`
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
	_, isService := o.(*corev1.Service)
	for name, value := range o.GetAnnotations() {
		switch rating, why, ok := rate(name, value, c); {
		case !ok, isService && strings.HasPrefix(name, nginxPrefix): // ingress-nginx reads those of Ingresses alone
		case rating == guard:
			all = append(all, Finding{name, value, No, true, why})
		default:
			all = append(all, Finding{name, value, rating, false, why})
		}
	}
	slices.SortFunc(all, func(a, b Finding) int { return cmp.Compare(a.Annotation, b.Annotation) })
	return all
}

// Undone names the annotations that ask for what weir does not do: those for
// which it refuses everybody, and all others.
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

const unknown = "weir does not know this annotation, and neither does the documentation of whoever it is for; take it out, or look for a misspelling"

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
		rating, why = Exact, "" // as templates leave it: nobody is asked for anything
	case known:
		rating, why = judge.rate(value, c)
	case strings.HasPrefix(key, "auth-"):
		rating, why = guard, refused // of a later ingress-nginx, or of Traefik 1
	default:
		rating, why = No, unknown
	}
	return rating, why, true
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
