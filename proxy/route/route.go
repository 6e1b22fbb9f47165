// Package route finds the route of a request. It knows nothing of backends: a route is any
// value of the caller.
//
// The caller compiles its matches once, into Hosts and Paths, which then never change. A lookup
// first finds the host (Hosts.Find), then the route among the matches of that host
// (Paths.Find). Between the two steps the caller may check what depends only on the host, such
// as TLS. A lookup takes no lock, and allocates nothing, unless an expression is compared with
// a percent-encoded query parameter or a decoded path. Its time does not grow with the number of hosts or paths.
// Only matches of one path, and expressions that begin with the same text, are asked in turn.
package route

import (
	"net/netip"

	"github.com/weirproxy/weir/proxy/message"
)

// Kind is how the text of a Path is compared with the path of a request. The path of a request
// is compared as it was sent, without decoding, unless the Path says otherwise.
type Kind uint8

const (
	// Prefix matches the text, and every path below it: /a matches /a and /a/b, but not /ab. A
	// text that ends in a slash matches every path that begins with it. The prefix "/" matches
	// every path, and also the "*" of OPTIONS.
	Prefix Kind = iota
	// Exact matches only the text.
	Exact
	// Begins matches every path that begins with the text: /a matches /a, /a/b and /ab.
	Begins
	// Expression matches every path that begins with a match of the regular expression (RE2).
	// An expression for whole paths ends in "$".
	Expression
)

// Path is the condition that a match has for the path.
type Path struct {
	Kind Kind
	Text string // begins with a slash, unless Kind is Expression
	// FoldCase makes an Expression ignore the case of ASCII letters.
	FoldCase bool
	// Decoded makes an Expression match the path with its escapes decoded and its slashes merged,
	// as nginx does.
	Decoded bool
	// Among puts a path that is no Expression among the expressions, in the order of the length of
	// their texts. Otherwise it goes before all expressions.
	Among bool
	// AnySpelling makes a path match in every spelling that an endpoint may treat as the same:
	// with escapes decoded, slashes merged, and letters in another case. Text is decoded. An
	// Expression cannot have it.
	AnySpelling bool
}

// Match is the set of conditions that a request of a host must fulfil. The zero value of each
// other field than Path means that there is no such condition.
type Match struct {
	Path    Path
	Methods []string       // the method is one of them; case matters
	Headers []Condition    // all are fulfilled; the case of names does not matter
	Cookies []Condition    // all are fulfilled
	Query   []Condition    // all are fulfilled; names and values are compared after decoding
	Clients []netip.Prefix // one of them contains the client address
}

// Condition is a condition for a header, a cookie or a query parameter. Of several headers,
// cookies or parameters of the name, the first one counts.
type Condition struct {
	Name  string
	Kind  ValueKind
	Value string
}

// ValueKind is how a value is compared.
type ValueKind uint8

const (
	// Equal compares the whole value; case matters.
	Equal ValueKind = iota
	// Like compares the whole value with a regular expression (RE2).
	Like
	// Present accepts every value.
	Present
)

// Entry is a match and its route.
type Entry[T any] struct {
	Match
	Route T
}

// Request contains the properties of a request that matches look at. It is used only during a
// lookup.
type Request struct {
	Head   *message.Request
	Client netip.Addr // the zero Addr is in no network
	// Preflight is the method of the request that a preflight asks for (CORS). Conditions for
	// methods apply to it, and those for headers and cookies are fulfilled, because the preflight
	// does not have the headers and cookies of the request. Empty: Head is no preflight.
	Preflight []byte
}
