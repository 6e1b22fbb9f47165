package kube

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// httpFilters applies the filters of a rule to a route.
type httpFilters struct {
	conversion *gatewayConversion
	attachment *gateway.Attachment
	route      *config.Route
	rule       int // its index

	auth   *config.Auth // of the rule; nil: none
	closed bool         // the rule answers 500, because the server that authenticates is missing
}

// apply applies all filters. The error is a sentence.
func (f *httpFilters) apply(all []gatewayv1.HTTPRouteFilter) error {
	for i := range all {
		if err := f.applyOne(&all[i]); err != nil {
			return fmt.Errorf("the filter %s %w", all[i].Type, err)
		}
	}
	if f.route.Redirect != nil && f.route.Rewrite != nil {
		return errors.New("the filters RequestRedirect and URLRewrite exclude each other")
	}
	return nil
}

var errEmptyFilter = errors.New("is empty")

func (f *httpFilters) applyOne(one *gatewayv1.HTTPRouteFilter) (err error) {
	switch one.Type {
	case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
		f.route.Request, err = headerModifier(f.route.Request, one.RequestHeaderModifier, config.CheckRequestHeader)
	case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
		f.route.Response, err = headerModifier(f.route.Response, one.ResponseHeaderModifier, config.CheckResponseHeader)
	case gatewayv1.HTTPRouteFilterRequestRedirect:
		f.route.Redirect, err = requestRedirect(one.RequestRedirect)
	case gatewayv1.HTTPRouteFilterURLRewrite:
		f.route.Rewrite, err = urlRewrite(one.URLRewrite)
	case gatewayv1.HTTPRouteFilterRequestMirror:
		return f.mirror(one.RequestMirror)
	case gatewayv1.HTTPRouteFilterCORS:
		f.route.CORS, err = corsFilter(one.CORS)
	case gatewayv1.HTTPRouteFilterExternalAuth:
		return f.externalAuth(one.ExternalAuth)
	default:
		return errors.New("is not supported by weir; remove it")
	}
	return err
}

// headerModifier adds a filter to changes of HTTP headers.
func headerModifier(to *config.HeaderEdits, from *gatewayv1.HTTPHeaderFilter, check func(string) error) (*config.HeaderEdits, error) {
	if from == nil {
		return nil, errEmptyFilter
	}
	if to == nil {
		to = &config.HeaderEdits{}
	}
	for _, name := range from.Remove {
		if err := check(name); err != nil {
			return nil, fmt.Errorf("has the header %q, which %w", name, err)
		}
		to.Remove = append(to.Remove, name)
	}
	for _, l := range []struct {
		from []gatewayv1.HTTPHeader
		to   *[]config.HeaderValue
	}{{from.Set, &to.Set}, {from.Add, &to.Add}} {
		for i := range l.from {
			h := &l.from[i]
			err := check(string(h.Name))
			if err == nil {
				err = config.CheckHeaderValue(h.Value)
			}
			if err != nil {
				return nil, fmt.Errorf("has the header %q, which %w", h.Name, err)
			}
			*l.to = append(*l.to, config.HeaderValue{Name: string(h.Name), Value: config.LiteralTemplate(h.Value)})
		}
	}
	return to, nil
}

// requestRedirect converts a redirect. bind sets the port of the listener.
func requestRedirect(from *gatewayv1.HTTPRequestRedirectFilter) (*config.Redirect, error) {
	if from == nil {
		return nil, errEmptyFilter
	}
	d := &config.Redirect{Always: true, Status: 302}
	if from.Scheme != nil {
		d.Scheme = strings.ToLower(*from.Scheme)
		if d.Scheme != "http" && d.Scheme != "https" {
			return nil, fmt.Errorf("has the scheme %q; write http or https", *from.Scheme)
		}
	}
	if from.Hostname != nil {
		d.Host = string(*from.Hostname)
	}
	if from.Port != nil {
		d.Port = int(*from.Port)
	}
	if from.StatusCode != nil {
		d.Status = *from.StatusCode
	}
	switch d.Status {
	case 301, 302, 303, 307, 308:
	default:
		return nil, fmt.Errorf("has the status %d, which is none of a redirect", d.Status)
	}
	var err error
	d.Prefix, d.Path, err = pathModifier(from.Path)
	return d, err
}

// urlRewrite converts a rewrite of the URL.
func urlRewrite(from *gatewayv1.HTTPURLRewriteFilter) (*config.Rewrite, error) {
	if from == nil {
		return nil, errEmptyFilter
	}
	w := &config.Rewrite{}
	if from.Hostname != nil {
		w.Host = string(*from.Hostname)
	}
	var err error
	w.Prefix, w.Path, err = pathModifier(from.Path)
	return w, err
}

// pathModifier converts what replaces a path, or its prefix.
func pathModifier(m *gatewayv1.HTTPPathModifier) (prefix string, path config.Template, err error) {
	switch {
	case m == nil:
		return "", "", nil
	case m.Type == gatewayv1.FullPathHTTPPathModifier && m.ReplaceFullPath != nil:
		path, err = config.LiteralPath(cmp.Or(*m.ReplaceFullPath, "/"))
	case m.Type == gatewayv1.PrefixMatchHTTPPathModifier && m.ReplacePrefixMatch != nil:
		prefix, err = config.NewPrefix(cmp.Or(*m.ReplacePrefixMatch, "/"))
	default:
		return "", "", fmt.Errorf("has a path of the type %s, which weir does not know", m.Type)
	}
	if err != nil {
		err = fmt.Errorf("has a new path that %w", err)
	}
	return prefix, path, err
}

// mirror adds a mirror. If its backend is wrong, there is no mirror, and the route says so.
func (f *httpFilters) mirror(from *gatewayv1.HTTPRequestMirrorFilter) error {
	if from == nil {
		return errEmptyFilter
	}
	name, problem := f.conversion.resolve(f.attachment, &from.BackendRef, forRequests)
	if problem != nil {
		f.attachment.Refs = gateway.Also(f.attachment.Refs, problem)
		return nil
	}
	m := config.Mirror{Backend: name, Percent: 100}
	switch {
	case from.Percent != nil:
		m.Percent = int(*from.Percent)
	case from.Fraction != nil:
		of := int32(100)
		if from.Fraction.Denominator != nil {
			of = *from.Fraction.Denominator
		}
		m.Percent, m.Of = int(from.Fraction.Numerator), int(of)
		if m.Of <= 0 || m.Percent < 0 || m.Percent > m.Of {
			return fmt.Errorf("has the fraction %d/%d, which is not between 0 and 1", m.Percent, m.Of)
		}
	}
	if m.Percent > 0 {
		f.route.Mirror = append(f.route.Mirror, m)
	}
	return nil
}

// defaultMaxAge is how long browsers remember the answer to a preflight, if the filter does not
// say it.
const defaultMaxAge = 5 * time.Second

// corsFilter converts the CORS protocol. A star in an origin stands for any number of labels.
func corsFilter(from *gatewayv1.HTTPCORSFilter) (*config.CORS, error) {
	if from == nil {
		return nil, errEmptyFilter
	}
	c := &config.CORS{Echo: true, MaxAge: defaultMaxAge, Credentials: from.AllowCredentials != nil && *from.AllowCredentials}
	if from.MaxAge > 0 {
		c.MaxAge = time.Duration(from.MaxAge) * time.Second
	}
	for _, o := range from.AllowOrigins {
		parsed, err := config.ParseOrigin(strings.Replace(string(o), "://*.", "://**.", 1))
		if err != nil {
			return nil, fmt.Errorf("has the origin %q, which %w", o, err)
		}
		c.Origins = append(c.Origins, parsed)
	}
	for _, m := range from.AllowMethods {
		c.Methods = append(c.Methods, string(m))
	}
	for _, h := range from.AllowHeaders {
		c.Headers = append(c.Headers, string(h))
	}
	for _, h := range from.ExposeHeaders {
		c.Expose = append(c.Expose, string(h))
	}
	return c, nil
}

// tries sets the timeouts and the retries of a rule.
func (f *httpFilters) tries(rule *gatewayv1.HTTPRouteRule) error {
	if t := rule.Timeouts; t != nil {
		request, err := apiDuration(t.Request)
		if err != nil {
			return fmt.Errorf("timeouts.request is not a duration: %w", err)
		}
		try, err := apiDuration(t.BackendRequest)
		if err != nil {
			return fmt.Errorf("timeouts.backendRequest is not a duration: %w", err)
		}
		if request != 0 || try != 0 {
			f.route.Timeouts = &config.RouteTimeouts{Request: request, Try: try}
		}
	}
	if rule.Retry != nil {
		var err error
		if f.route.Retries, err = retryRule(rule.Retry); err != nil {
			return err
		}
	}
	return nil
}

// mostBackoff limits how long the retries of a rule wait. It is the limit of retries.backoff in the file.
const mostBackoff = 24 * time.Hour

// retryRule converts retries. The number of attempts is that of retries in the Gateway API.
func retryRule(from *gatewayv1.HTTPRouteRetry) (*config.RouteRetries, error) {
	r := &config.RouteRetries{Attempts: 2, Unshared: true, When: []config.RetryCause{config.RetryConnect, config.RetryTimeout, config.RetryReset}}
	if from.Attempts != nil {
		r.Attempts = *from.Attempts + 1
	}
	for _, code := range from.Codes {
		r.When = append(r.When, config.RetryCause(strconv.Itoa(int(code))))
	}
	var err error
	if r.Backoff, err = apiDuration(from.Backoff); err != nil || r.Backoff < 0 || r.Backoff > mostBackoff {
		return nil, fmt.Errorf("retry.backoff %q is not a duration of up to 24h", *from.Backoff)
	}
	return r, nil
}
