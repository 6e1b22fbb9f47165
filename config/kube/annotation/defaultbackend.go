package annotation

import "regexp"

// defaultBackends is the family of Services for errors.
var defaultBackends = map[string]judge{"default-backend": setting(defaultBackend)}

// ErrorsOfAll follows OfController if a Service shows errors for Ingresses without default-backend. In
// ingress-nginx a flag has its name.
const ErrorsOfAll = "default-backend-service"

const badService = "ingress-nginx ignores the value too; write the name of a Service in the namespace of the Ingress"

// serviceName matches the names that ingress-nginx accepts (RFC 1035).
var serviceName = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

// defaultBackend reads default-backend.
func defaultBackend(value string, _ context, s *Settings) (Rating, string) {
	if !serviceName.MatchString(value) {
		return No, badService
	}
	s.DefaultBackend = value
	return Exact, ""
}
