// Package lint reports how well weir supports the annotations of ingress-nginx and
// Traefik, for the command weir lint. The package annotation has the ratings.
package lint

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config/kube/annotation"
)

// Finding is the rating of one annotation, as weir lint prints it.
type Finding struct {
	Annotation string            `json:"annotation"`
	Value      string            `json:"value"`
	Rating     annotation.Rating `json:"rating"`
	// Refused means that weir answers 503 because of the annotation; otherwise everybody
	// would have access.
	Refused bool `json:"refused,omitempty"`
	// Why is how weir differs, or what to do instead; usually empty if the rating is
	// exact.
	Why string `json:"why,omitempty"`
}

// Object rates the annotations of an object, in alphabetical order. It skips
// annotations that are neither ingress-nginx's nor Traefik's.
func Object(o metav1.Object) (all []Finding) {
	for _, a := range annotation.Rate(o) {
		all = append(all, Finding{a.Name, a.Value, a.Rating, a.Guard, a.Why})
	}
	return all
}
