package annotation

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ingressOf returns an Ingress with these paths, and with annotations, of which each has the form
// "name: value".
func ingressOf(paths []string, annotations ...string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
	for _, one := range annotations {
		name, value, _ := strings.Cut(one, ": ")
		i.Annotations[Nginx+name] = value
	}
	rule := networkingv1.IngressRule{Host: "a.example", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{}}}
	for _, p := range paths {
		rule.HTTP.Paths = append(rule.HTTP.Paths, networkingv1.HTTPIngressPath{Path: p})
	}
	i.Spec.Rules = []networkingv1.IngressRule{rule}
	return i
}

// ingressWith is an Ingress of the namespace shop with these annotations of ingress-nginx.
func ingressWith(values map[string]string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Annotations: map[string]string{}}}
	for name, value := range values {
		i.Annotations[Nginx+name] = value
	}
	return i
}

// valuesOf returns annotations from pairs of a name and a value. The last value of a name counts.
func valuesOf(pairs ...string) map[string]string {
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	return values
}

// given removes the annotations with an empty value.
func given(values map[string]string) map[string]string {
	maps.DeleteFunc(values, func(_, value string) bool { return value == "" })
	return values
}

// ratingsOf returns the reasons for the ratings of all annotations, and whether an annotation closes the Ingress.
func ratingsOf(i *networkingv1.Ingress) (closed bool, why string) {
	for _, a := range Rate(i) {
		closed = closed || a.Guard
		why += a.Why
	}
	return closed, why
}

// checkRating checks the rating of the only annotation of an Ingress, which must not close the Ingress.
func checkRating(t *testing.T, i *networkingv1.Ingress, want Rating) {
	t.Helper()
	if all := Rate(i); len(all) != 1 || all[0].Rating != want || all[0].Guard {
		t.Errorf("%v is rated %+v, want %s", i.Annotations, all, want)
	}
}

// checkSetting returns a function that reads one annotation, "name: value", and compares its setting and its rating.
// of selects the setting.
func checkSetting[T any](t *testing.T, of func(Settings) T) func(line string, want T, rating Rating) {
	return func(line string, want T, rating Rating) {
		t.Helper()
		i := ingressOf(nil, line)
		if got := of(SettingsOf(i)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s sets %+v, want %+v", line, got, want)
		}
		checkRating(t, i, rating)
	}
}
