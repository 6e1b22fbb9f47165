package config

// Fallback is another backend for the requests of a route, while the backend of the route has no
// endpoint. Only routes made from Kubernetes objects have it.
type Fallback struct {
	Backend string
	Report  ErrorReport
}

// ErrorReport is information about the route of a request. weir sends it to a default backend in the
// HTTP headers of ingress-nginx.
type ErrorReport struct {
	Namespace, Ingress string // X-Namespace, X-Ingress-Name
	Source, Port       string // of the Service: X-Service-Name, X-Service-Port
}
