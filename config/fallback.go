package config

// Fallback is another backend for the requests of a route, while the backend of the route has no
// endpoint. Only routes made from Kubernetes objects have it.
type Fallback struct {
	Backend string
	Report  ErrorReport
}

// ErrorReport is what a default backend learns of the route of a request, in the HTTP headers of
// ingress-nginx.
type ErrorReport struct {
	Namespace, Ingress string // X-Namespace, X-Ingress-Name
	Source, Port       string // of the Service: X-Service-Name, X-Service-Port
}
