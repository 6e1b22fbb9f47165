package kube

import (
	"errors"
	"fmt"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// externalTimeout limits the request to the server of ExternalAuth. It is the default of auth.forward.
const externalTimeout = 5 * time.Second

// externalAuth applies the filter ExternalAuth (GEP-1494): a server decides on each request. A reference
// that cannot be resolved closes the rule.
func (f *httpFilters) externalAuth(from *gatewayv1.HTTPExternalAuthFilter) error {
	switch {
	case from == nil:
		return errEmptyFilter
	case f.auth != nil:
		return errors.New("occurs twice; one server decides about the requests of a rule")
	}
	e := &config.ExternalAuth{Timeout: externalTimeout}
	if from.ForwardBody != nil {
		e.MaxBody = int(from.ForwardBody.MaxSize)
	}
	to := forRequests
	switch from.ExternalAuthProtocol {
	case gatewayv1.HTTPRouteExternalAuthHTTPProtocol:
		if err := readExternalHTTP(e, from.HTTPAuthConfig); err != nil {
			return err
		}
	case gatewayv1.HTTPRouteExternalAuthGRPCProtocol:
		to, e.GRPC = forCalls, true
		if from.GRPCAuthConfig != nil {
			e.Request = from.GRPCAuthConfig.AllowedRequestHeaders
		}
		e.Host = string(from.BackendRef.Name)
	default:
		return fmt.Errorf("has the protocol %s, which weir does not know; write HTTP or GRPC", from.ExternalAuthProtocol)
	}
	name, problem := f.conversion.resolve(f.attachment, &from.BackendRef, to)
	if problem != nil {
		f.attachment.Refs = gateway.Also(f.attachment.Refs, problem)
		f.closed = true
		return nil
	}
	e.Backend = name
	// Rules may have equal names, and another Gateway may show the server another certificate.
	f.auth = &config.Auth{Name: fmt.Sprintf("httproute/%s/%d/auth/%s", f.attachment.Name, f.rule, name), External: e}
	return nil
}

// readExternalHTTP reads the settings of the filter for requests to the server, and for its responses.
func readExternalHTTP(e *config.ExternalAuth, from *gatewayv1.HTTPAuthConfig) error {
	if from == nil {
		return nil
	}
	if from.Path != "" {
		p, err := config.ParsePath("/" + strings.Trim(from.Path, "/"))
		if err != nil {
			return fmt.Errorf("has the path %q, which %w", from.Path, err)
		}
		e.Prefix = strings.TrimSuffix(p.Value, "/")
	}
	e.Request = from.AllowedRequestHeaders
	for _, name := range from.AllowedResponseHeaders {
		if err := config.CheckRequestHeader(name); err != nil {
			return fmt.Errorf("has the response header %q, which %w", name, err)
		}
	}
	e.Response = from.AllowedResponseHeaders
	return nil
}

// guard gives the route of a rule the authentication of its filters.
func (f *httpFilters) guard() error {
	switch {
	case f.auth != nil && f.route.Redirect != nil:
		return errors.New("the filters RequestRedirect and ExternalAuth exclude each other, because weir redirects before it authenticates")
	case f.closed:
		*f.route = config.Route{Name: f.route.Name, Namespace: f.route.Namespace, TLS: f.route.TLS, Backend: f.conversion.missingBackend(f.attachment, false)}
	case f.auth != nil && f.attachment.Accept == nil:
		f.route.Auth = f.auth.Name
		f.conversion.entries[f.auth.Name] = f.auth
	}
	return nil
}
