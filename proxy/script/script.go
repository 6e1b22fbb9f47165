// Package script parses the snippets of Ingresses. It accepts the directives of nginx that weir
// supports: they change HTTP headers, answer requests, or compare variables. Any other directive is an
// error, so that no directive that restricts access is lost.
//
// Package filter runs programs. This package knows no requests.
package script

import (
	"net/netip"
	"regexp"
	"slices"
	"unicode/utf8"
)

// Expression is a compiled regular expression.
type Expression struct{ *regexp.Regexp }

// Groups returns the groups of the first match, in the memory of groups; nil: there is none.
func (e *Expression) Groups(text []byte, groups []string) []string {
	found := e.FindSubmatch(runes(text))
	if found == nil {
		return nil
	}
	groups = groups[:0]
	for _, g := range found {
		one := make([]byte, 0, len(g))
		for _, r := range string(g) {
			one = append(one, byte(r))
		}
		groups = append(groups, string(one))
	}
	return groups
}

// runes returns text with a rune for each byte, in UTF-8.
func runes(text []byte) []byte {
	if !slices.ContainsFunc(text, func(b byte) bool { return b >= utf8.RuneSelf }) {
		return text
	}
	var all []byte
	for _, b := range text {
		all = utf8.AppendRune(all, rune(b))
	}
	return all
}

// Program is what the snippets for a host and a location do. It never changes.
type Program struct {
	// Host and Location are the steps of the rewrite phase, in their order. Those of the host come
	// first.
	Host, Location []Step
	// Confs are changes of HTTP headers. Confs[0] always exists. The others belong to blocks of if, and
	// their Response replaces that of Confs[0].
	Confs []Conf
	// Access are the directives allow and deny, in their order. The first directive whose network
	// contains the client's address decides. With OfHost they belong to the host, and apply only to locations that have no
	// such directives of their own.
	Access []Entry
	OfHost bool
	// Locations are those of the host, in their order. Each takes requests from the locations that ingress-nginx writes.
	Locations []Location
	// Moves means that a step of the host may change the path, after which nginx looks for the location of the new path.
	Moves bool
	// Answers are variables with a part of the response of auth-url; until then they are empty.
	Answers []Answer
	// Variables is the number of variables that set has.
	Variables int
	// Ignored are directives that have no effect in weir, in alphabetical order.
	Ignored []string
}

// MayRefuse reports whether the program may answer requests itself.
func (p *Program) MayRefuse() bool { return len(p.Host)+len(p.Location)+len(p.Locations) > 0 }

// Does reports whether the program does anything besides Access.
func (p *Program) Does() bool {
	return p.MayRefuse() || slices.ContainsFunc(p.Confs, func(c Conf) bool { return len(c.Request)+len(c.Response) > 0 || c.Type != "" || c.Expires != nil })
}

// Kind is what a Step does.
type Kind uint8

// The kinds of steps.
const (
	Set     Kind = iota // sets a variable to Text
	If                  // runs Block, if Condition holds
	Return              // answers the request
	Rewrite             // compares the path with an expression, and then redirects, or changes the path
	Break               // ends the steps
)

// Step is one directive of the rewrite phase.
type Step struct {
	Kind      Kind
	Variable  int  // of Set
	Text      Text // of Set; of Return: the URL or the body; of Rewrite: the replacement
	Condition Condition
	Block     []Step
	Conf      int // of If: the index of the changes of HTTP headers, if Condition holds; 0: none
	Status    int // of Return; of Rewrite: of the redirect, 0: the endpoint gets another path
	Match     string
	KeepQuery bool // of Rewrite: the query of the request is appended
	GoOn      bool // of Rewrite: the steps after it run as well
}

// Condition compares a text.
type Condition struct {
	Of       Text
	Operator string // empty: the text is neither empty nor "0"; =, !=, ~, ~*, !~ or !~*
	Value    Text   // of = and !=
	Match    string // an expression of the others
}

// Conf is changes of HTTP headers.
type Conf struct {
	Request  []Edit
	Response []Edit
	Type     string // of the bodies of Return; empty: that of nginx
	Expires  *Expires
}

// Expires is the directive expires; nil: there is none.
type Expires struct {
	Off        bool
	Expires    string // the HTTP header if it is fixed; empty: For after the response
	Control    string // the value of Cache-Control
	ForSeconds int    // may be negative
}

// Location is a location of a host that forwards nothing: it answers 403 if Access refuses the client, and otherwise as
// Steps say, or as nginx does if there is no such file.
type Location struct {
	Kind   string // =, ^~, ~, ~* or empty, as in nginx
	Path   string // text, or an expression
	Steps  []Step
	Access []Entry
	Conf   int // the index of the changes of HTTP headers
}

// Answer sets a variable after auth-url has responded.
type Answer struct {
	Variable int
	Of       string // the name of an HTTP header in lower case, or one of the constants below
}

// AnswerStatus stands for the status of the response, and AnswerCookie begins the name of a cookie that it sets.
const (
	AnswerStatus = ":status"
	AnswerCookie = ":cookie:"
)

// EditKind is how an Edit changes headers.
type EditKind uint8

// The kinds of edits.
const (
	Add       EditKind = iota // beside others, in responses that are no errors
	AddAlways                 // beside others
	Replace                   // of a name
	Remove                    // of a name, or of all names that begin with it
	Hide                      // Remove, before all other changes
)

// Edit is one change of HTTP headers.
type Edit struct {
	Kind  EditKind
	Name  string // for Remove: perhaps with a star at its end
	Value Text   // empty text: Add does nothing, and Replace removes
}

// Entry is an allow or a deny.
type Entry struct {
	Allow   bool
	Network string // an address, a network, or "all"
}

// Prefix returns the network of the entry. all means that it has every address.
func (e Entry) Prefix() (p netip.Prefix, all, ok bool) {
	if e.Network == "all" {
		return p, true, true
	}
	if p, err := netip.ParsePrefix(e.Network); err == nil {
		return p.Masked(), false, !p.Addr().Is4In6()
	}
	a, err := netip.ParseAddr(e.Network)
	return netip.PrefixFrom(a, a.BitLen()), false, err == nil && a.Zone() == "" && !a.Is4In6()
}
