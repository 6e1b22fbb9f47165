package config

import (
	"fmt"
	"strconv"
	"strings"
)

// ErrorPage replaces the bodies of responses with an error status by a page of a backend.
type ErrorPage struct {
	Status  []StatusRange
	Backend string
	Path    string // on that backend; StatusVariable stands for the status
	// AsNginx replaces whole responses, as ingress-nginx does: the backend gets the path / with the
	// query, the HTTP headers of the client and Report, and decides the status. Only of objects.
	AsNginx bool
	Report  ErrorReport // of AsNginx
	OnlyOwn bool        // only weir's own responses are replaced; only of objects
}

// StatusRange is a range of status codes. Both ends belong to it.
type StatusRange struct{ Min, Max int }

// StatusVariable is the variable of ErrorPage.Path.
const StatusVariable = "{status}"

func (r *Route) errorsKey() value {
	return marked(&r.Errors, inPlace(&r.Errors, func() ErrorPage { return ErrorPage{} }, (*ErrorPage).section))
}

// marked is a list whose place is known, so that checks can report it as a whole.
func marked(dst any, list value) value {
	read := list.read
	list.read = func(v *draft, n *Tree, p path) {
		v.mark(dst, n, p)
		read(v, n, p)
	}
	return list
}

func (e *ErrorPage) section() section {
	return section{object: e, keys: []key{
		{"status", list(&e.Status, errorStatus).required(`["500-599"]`), "The status codes from 400 to 599, or ranges of them."},
		{"backend", text(&e.Backend).required("pages"), "The backend of the pages. weir requests them with GET, without Cookie and Authorization."},
		{"path", pagePath.at(&e.Path).required(`"/{status}.html"`), "The path of the page on that backend. {status} stands for the status."},
	}}
}

// errorStatus is a status or a range of them. A single status may be a number.
func errorStatus(dst *StatusRange) value {
	return orInteger(errorStatuses.at(dst), wholeNumber(400, 599))
}

var errorStatuses = kind[StatusRange]{what: `a status such as "503" or a range such as "500-599"`, pattern: `[45][0-9][0-9](-[45][0-9][0-9])?`,
	parse: func(s string) (StatusRange, error) {
		first, last, isRange := strings.Cut(s, "-")
		if !isRange {
			last = first
		}
		lo, err := strconv.Atoi(first)
		hi, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || lo < 400 || hi > 599 || lo > hi || len(first)+len(last) != 6 {
			return StatusRange{}, fmt.Errorf(`is not an error status or a range of them; write one from 400 to 599, such as "503" or "500-599"`)
		}
		return StatusRange{lo, hi}, nil
	},
	format: func(r StatusRange) string {
		if r.Min == r.Max {
			return strconv.Itoa(r.Min)
		}
		return fmt.Sprintf("%d-%d", r.Min, r.Max)
	}}

// pagePath is a path in which {status} stands for a status.
var pagePath = kind[string]{what: "a path such as /{status}.html", format: same[string], pattern: `/[!"%->@-\[\]-~]*`,
	parse: func(s string) (string, error) {
		literal := strings.ReplaceAll(s, StatusVariable, "500")
		if strings.ContainsAny(literal, "{}") {
			return "", fmt.Errorf("has a brace that is no part of {status}, the only variable here; take it out")
		}
		if !strings.HasPrefix(literal, "/") {
			return "", fmt.Errorf("does not begin with a slash; write a path such as /{status}.html")
		}
		return s, checkNewPath(literal)
	}}

// checkErrorPages reports backends of error pages that do not exist or have no pages.
func (v *draft) checkErrorPages(r *Route) {
	for i := range r.Errors {
		v.checkRequests(&r.Errors[i].Backend, "pages")
	}
}

// checkRequests reports the name of a backend that does not exist, or that gets no requests.
func (v *draft) checkRequests(dst *string, what string) {
	b := v.backendNamed(*dst)
	switch {
	case b == nil:
		checkName(v, dst, "backend", v.backends, (*Backend).name)
	case b.Protocol == ProtocolTCP:
		v.failAt(v.places[dst], `backend %q has "protocol: tcp", so it cannot get requests for %s; use a backend that speaks http, https or h2c`, b.Name, what)
	}
}
