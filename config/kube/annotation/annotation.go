// Package annotation rates the annotations of ingress-nginx and Traefik by how well
// weir supports them, and reads those that set something for routes. It looks at values as
// well as names: an annotation that asks for a default of weir is supported, although weir
// does not read it.
//
// The ratings decide access: weir answers 503 for an object that has a guard, an
// annotation that restricts access, or may, and that weir does not support.
package annotation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The prefixes of the annotations.
const (
	Nginx   = "nginx.ingress.kubernetes.io/" // of ingress-nginx
	Traefik = "traefik.ingress.kubernetes.io/"
	Own     = "weirproxy.github.io/" // of weir, also for options of Gateways
)

// Rating is how well weir supports an annotation.
type Rating string

// The ratings, from best to worst.
const (
	Exact Rating = "exact" // weir does exactly that
	Near  Rating = "near"  // weir does something similar
	No    Rating = "no"    // weir does not support it, or not yet
)

// guard is No for an annotation that restricts access, or may: weir answers 503.
const guard Rating = "guard"

// Rated is one annotation of an object, and its rating.
type Rated struct {
	Name, Value string
	Rating      Rating
	// Guard means that weir answers 503 because of the annotation; otherwise everybody
	// would have access. The rating of a guard is No.
	Guard bool
	// Why is how weir differs, or what to do instead; usually empty if the rating is
	// exact.
	Why string
}

// Rate rates the annotations of an object, in alphabetical order. It skips annotations with
// other prefixes, and unknown annotations of HAProxy's controllers.
func Rate(o metav1.Object) (all []Rated) {
	c := context{}
	if i, ok := o.(*networkingv1.Ingress); ok {
		c = contextOf(i)
	}
	_, isService := o.(*corev1.Service)
	written := o.GetAnnotations()
	for name, value := range written {
		rating, why, ok := rate(name, value, c)
		if !ok && !isService {
			rating, why, ok = rateHAProxy(name, value, written)
		}
		switch {
		case !ok, isService && strings.HasPrefix(name, Nginx): // ingress-nginx reads only annotations of Ingresses
		case rating == guard:
			all = append(all, Rated{name, value, No, true, why})
		default:
			all = append(all, Rated{name, value, rating, false, why})
		}
	}
	slices.SortFunc(all, func(a, b Rated) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Unsupported names the annotations of an object that weir does not support, in
// alphabetical order: the guards, for which it answers 503, and all others. A guard may come
// from the ConfigMap of ingress-nginx's controller. others has only annotations of ingress-nginx and
// Traefik that the object itself has.
func Unsupported(o metav1.Object) (guards, others []string) {
	written := o.GetAnnotations()
	for _, a := range Rate(o) {
		switch source := sourced(a.Name, written); {
		case a.Guard:
			guards = append(guards, source)
		case a.Rating == No && source == a.Name && !isHAProxy(a.Name):
			others = append(others, a.Name)
		}
	}
	for _, key := range closingKeys(written) {
		guards = append(guards, FromConfigMap(key))
	}
	return guards, others
}

// IsOfHost reports whether ingress-nginx applies a guard to all paths of a host,
// whichever Ingress has the guard.
func IsOfHost(name string) bool {
	short, ok := strings.CutPrefix(strings.TrimSuffix(name, inConfigMap), Nginx)
	return ok && (short == "server-snippet" || strings.HasPrefix(short, "auth-tls-"))
}

// IsText reports whether the controller that reads a guard compares prefixes as text: /api includes /apis. HAProxy's do so
// for the type ImplementationSpecific.
func IsText(name string) bool { return strings.HasPrefix(name, Traefik) || isHAProxy(name) }

// context is the rest of the object that a rating depends on.
type context struct {
	hasTLS bool
	paths  paths
	wide   bool       // a rule of the Ingress is for more than one host
	deep   bool       // a rule of the Ingress has another path than /
	loose  *loosePath // ingress-nginx may apply the annotations to more paths than weir; nil: it does not

	namespace, name string
	values          map[string]string // of the annotations of ingress-nginx, without their prefix
	keys            map[string]string // of the ConfigMap of ingress-nginx's controller; see OfController
}

func contextOf(i *networkingv1.Ingress) context {
	c := context{hasTLS: len(i.Spec.TLS) > 0, wide: isWide(i), deep: isDeep(i), loose: loosePathOf(i), namespace: i.Namespace, name: i.Name, values: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(i.Annotations)) { // of two spellings of a name, the spelling in lower case comes last, and counts
		if key, ok := strings.CutPrefix(name, Nginx); ok {
			c.values[general(key)] = strings.TrimSpace(i.Annotations[name])
		} else if key, ok := strings.CutPrefix(name, OfController); ok {
			if c.keys == nil {
				c.keys = map[string]string{}
			}
			c.keys[key] = strings.TrimSpace(i.Annotations[name])
		}
	}
	if UsesPatterns(i) {
		c.paths = pathsOf(i)
	}
	return c
}

// value is the value of another annotation of the Ingress; empty: it has none.
func (c context) value(name string) string { return c.values[name] }

// named reads the name of an object in the namespace of the Ingress, with or without the
// namespace.
func (c context) named(value string) (name string, ok bool) {
	namespace, name, found := strings.Cut(value, "/")
	if !found {
		namespace, name = c.namespace, value
	}
	return name, namespace == c.namespace && name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !('a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-' || r == '.')
	})
}

// isWide reports whether a rule of the Ingress, or its default backend, is for more than one host.
func isWide(i *networkingv1.Ingress) bool {
	return len(i.Spec.Rules) == 0 && i.Spec.DefaultBackend != nil || slices.ContainsFunc(i.Spec.Rules, func(r networkingv1.IngressRule) bool {
		return r.Host == "" || strings.Contains(r.Host, "*")
	})
}

// isDeep reports whether a rule of the Ingress has another path than /.
func isDeep(i *networkingv1.Ingress) bool {
	return slices.ContainsFunc(i.Spec.Rules, func(r networkingv1.IngressRule) bool {
		return r.HTTP != nil && slices.ContainsFunc(r.HTTP.Paths, func(p networkingv1.HTTPIngressPath) bool { return len(p.Path) > 1 })
	})
}

// loosePath is a path that ingress-nginx compares in another way than weir: with special characters, which clients spell
// in several ways, or a regular expression that weir does not compare. Both are parts of a sentence.
type loosePath struct{ is, instead string }

func (l *loosePath) String() string {
	return l.is + ", and weir would not protect each spelling that ingress-nginx protects, so weir answers 503 for the Ingress; " + l.instead
}

// loosePathOf returns the first such path of the Ingress; nil: it has none.
func loosePathOf(i *networkingv1.Ingress) *loosePath {
	patterns := UsesPatterns(i)
	for _, r := range i.Spec.Rules {
		if r.HTTP == nil {
			continue
		}
		for n := range r.HTTP.Paths {
			if l := looseOf(&r.HTTP.Paths[n], patterns); l != nil {
				return l
			}
		}
	}
	return nil
}

func looseOf(p *networkingv1.HTTPIngressPath, patterns bool) *loosePath {
	path := fmt.Sprintf("the path %.100q", p.Path)
	switch {
	case p.Path == "" || p.Path == "/":
		return nil
	case patterns:
		if _, err := CompilePattern(p.Path); err != nil {
			return &loosePath{path + " is no regular expression of RE2, or a long one", "write it in RE2, without lookaround and back references"}
		}
		if HasChoice(p.Path) {
			return &loosePath{path + " has a bar outside of parentheses", "put the alternatives into parentheses, such as /(a|b)"}
		}
		return nil
	}
	if strings.ContainsFunc(p.Path, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("/-_.~", r))
	}) {
		return &loosePath{path + " has special characters", "write it with letters, digits and / - _ . ~, or as a regular expression with use-regex"}
	}
	return nil
}

// paths is the kind of regular expressions that the paths of an Ingress would be.
type paths int

const (
	readable   paths = iota // weir can compare all of them
	unreadable              // weir cannot compare one of them
)

func pathsOf(i *networkingv1.Ingress) paths {
	for _, rule := range i.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for _, p := range rule.HTTP.Paths {
			if _, err := CompilePattern(p.Path); err != nil {
				return unreadable
			}
		}
	}
	return readable
}

// A judge rates the values of one annotation. A test generates the tables in
// docs/migrate-*.md from the judges.
type judge struct {
	exact  []string // values that ask for a default of weir, in upper or lower case
	rating Rating   // of all other values
	why    string
	look   func(value string, c context) (Rating, string) // replaces the fields above
	set    setter                                         // of an annotation that sets something for routes; otherwise nil
}

func (j judge) rate(value string, c context) (Rating, string) {
	switch {
	case j.look != nil:
		return j.look(value, c)
	case slices.ContainsFunc(j.exact, func(e string) bool { return strings.EqualFold(e, value) || sameTruth(e, value) }):
		return Exact, ""
	}
	return j.rating, j.why
}

// sameTruth reports whether value is the truth value of word, which is true or false. ingress-nginx also reads it from
// 0, f, 1 and t.
func sameTruth(word, value string) bool {
	is, err := strconv.ParseBool(value)
	return err == nil && word == strconv.FormatBool(is)
}

const unknown = "neither weir nor the documentation of the controller knows this annotation; check its spelling, or remove it"

func rate(name, value string, c context) (rating Rating, why string, ok bool) {
	judges := nginx
	key, ok := strings.CutPrefix(name, Nginx)
	if !ok {
		judges = traefik
		if key, ok = strings.CutPrefix(name, Traefik); !ok {
			return "", "", false
		}
	}
	if IsUnset(name, value) {
		return Exact, "", true
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

// because is a rating and its reason.
type because struct {
	Rating
	why string
}

// rateIn rates one annotation of a family whose annotations depend on each other. read reads the
// whole family, and returns the ratings of the annotations that are not exact.
func rateIn[T any](read func(context) (T, map[string]because), name string) func(string, context) (Rating, string) {
	return func(_ string, c context) (Rating, string) {
		_, ratings := read(c)
		if r, ok := ratings[name]; ok {
			return r.Rating, r.why
		}
		return Exact, ""
	}
}

// ratedBy rates several annotations of a family by rateIn.
func ratedBy[T any](read func(context) (T, map[string]because), names ...string) map[string]judge {
	all := map[string]judge{}
	for _, name := range names {
		all[name] = looking(rateIn(read, name))
	}
	return all
}
