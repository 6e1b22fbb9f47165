package annotation

import (
	"regexp"
	"strings"
)

// customHeaders is the family of HTTP headers of responses from a ConfigMap.
var customHeaders = map[string]judge{"custom-headers": setting(setCustomHeaders)}

// CustomHeaders is the ConfigMap whose HTTP headers an Ingress adds to responses. The zero value adds none.
type CustomHeaders struct {
	Namespace, Name string
	// Allowed are the names of the HTTP headers that the ConfigMap of the controller allows, separated by commas.
	Allowed string
}

// AllowedHeaders is the key of the controller's ConfigMap that has the names of HTTP headers. An empty value
// allows none. Without the key there is no ConfigMap of the controller.
const AllowedHeaders = "global-allowed-response-headers"

const (
	needsAllowed = "weir sets these HTTP headers only if " + AllowedHeaders + " in the ConfigMap of kubernetes.ingress_nginx lists each of them, and weir's configuration names no such ConfigMap, so it serves the Ingress without them; name the ConfigMap"
	noneAllowed  = AllowedHeaders + " in the ConfigMap of ingress-nginx lists no HTTP header, so weir answers 503 for an Ingress whose ConfigMap has one, as ingress-nginx does; list its HTTP headers there"
	ignoredMap   = "ingress-nginx ignores the value, and so does weir; write namespace/name of a ConfigMap"
	otherMap     = "the ConfigMap is in another namespace, so weir serves the Ingress without these HTTP headers; copy it into the namespace of the Ingress, or write allow-cross-namespace-resources: \"true\" into the ConfigMap of ingress-nginx"
	bareMap      = "ingress-nginx answers 503 for a name without namespace; weir uses the ConfigMap in the namespace of the Ingress"
)

var (
	basicChars = regexp.MustCompile(`^[-._~a-zA-Z0-9/: ]*$`)
	objectName = regexp.MustCompile(`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`)
)

// setCustomHeaders reads custom-headers. The description of the annotation requires a ConfigMap in the namespace
// of the Ingress. ingress-nginx does not check this. weir checks it: otherwise a tenant could read the ConfigMaps
// of another tenant through an Ingress.
func setCustomHeaders(value string, c context, s *Settings) (Rating, string) {
	allowed, configured := c.keys[AllowedHeaders]
	namespace, name, whole := strings.Cut(value, "/")
	if !whole {
		namespace, name = c.namespace, value
	}
	switch {
	case value == "":
		return Exact, ""
	case !basicChars.MatchString(value) || !objectName.MatchString(name):
		return Near, ignoredMap
	case !configured:
		return No, needsAllowed
	case namespace != c.namespace && !isTrue(c.keys["allow-cross-namespace-resources"]):
		return No, otherMap
	}
	s.CustomHeaders = CustomHeaders{Namespace: namespace, Name: name, Allowed: allowed}
	switch {
	case allowed == "":
		return Near, noneAllowed
	case !whole:
		return Near, bareMap
	}
	return Exact, ""
}
