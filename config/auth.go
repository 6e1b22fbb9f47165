package config

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weirproxy/weir/disk"
	"github.com/weirproxy/weir/proxy/htpasswd"
	"github.com/weirproxy/weir/proxy/jwt"
	"github.com/weirproxy/weir/proxy/message"
)

// Auth is an entry of the section auth: how weir authenticates the requests of the routes that
// name it. Exactly one of Basic, Forward, JWT, Subrequest and External is set.
type Auth struct {
	Name     string
	Position Position
	Basic    *BasicAuth
	Forward  *ForwardAuth
	JWT      *JWTAuth
	// Subrequest and External are set only in entries that objects of a cluster make.
	Subrequest *Subrequest
	External   *ExternalAuth
}

// ExternalAuth is authentication by another server, as the filter ExternalAuth of the Gateway API
// demands (GEP-1494): by HTTP, where only the status 200 lets a request pass, or by Envoy's ext_authz
// over gRPC.
type ExternalAuth struct {
	Backend string // of the server
	GRPC    bool   // Prefix and Response are for HTTP
	Host    string // of requests to the server; empty: that of the client's request
	Prefix  string // before the path of each request; empty or without a slash at its end
	// MaxBody is the limit of a request's body, which the server gets too, in bytes. 0: the server gets no body.
	MaxBody int
	// Request has the names of the headers of the client that the server gets, besides Authorization.
	// gRPC: empty means all.
	Request []string
	// Response has the names of the headers of the server that the endpoint gets. Empty: all. weir drops
	// headers of the client with these names.
	Response []string
	Timeout  time.Duration // until the response has arrived
}

// Subrequest is authentication by another server, as nginx does it (auth_request). A 2xx response
// lets a request pass, 401 and 403 refuse it, and every other one is an error (500).
type Subrequest struct {
	Backend string   // of the server
	Path    Template // and query
	Host    string
	Method  string
	// Headers are copied from a 2xx response to the request. What the client sent in headers of
	// these names is dropped, on the routes of this entry only.
	Headers []string
	// Keep are the names, in lower case, of headers of its response that snippets use.
	Keep []string
	// Add are further headers of the request to the server. A variable may be empty; then the
	// header is left out.
	Add []HeaderValue
	// SignIn is the URL to which weir redirects clients instead of a 401; empty: none.
	SignIn        Template
	AlwaysCookies bool // cookies of the server go to the client also with responses that are errors
	// CacheBy is the key under which weir remembers responses of the server; empty: it remembers
	// none.
	CacheBy Template
	Cache   []CacheTime
	Timeout time.Duration
}

// CacheTime is how long weir remembers a response.
type CacheTime struct {
	Statuses []int // empty: every status
	For      time.Duration
}

// BasicAuth is authentication by user and password (RFC 7617).
type BasicAuth struct {
	File  string // of users, see proxy/htpasswd; empty: Object
	Realm string // which browsers show
	// Object names the object that has Users in place of a file, for messages. Endpoints then do
	// not get the user, as with ingress-nginx. Only objects of a cluster make such entries.
	Object string
	Users  Secret
}

// BasicUserHeader is the HTTP header in which an endpoint gets the user of auth.basic.
const BasicUserHeader = "X-Forwarded-User"

// ForwardAuth is authentication by another server.
type ForwardAuth struct {
	URL     string   // http or https
	Headers []string // copied from its 2xx response to the request
	// SignIn is the URL to which browsers are redirected instead of a 401, with {url} for the
	// URL of the request; empty: none.
	SignIn  string
	Timeout time.Duration // until the response has arrived
}

// SignInURL is the variable in ForwardAuth.SignIn.
const SignInURL = "{url}"

// JWTAuth is authentication by JSON Web Tokens (RFC 7519).
type JWTAuth struct {
	Issuer   string
	Audience []string      // one of them is in the token
	Keys     string        // a file with a JSON Web Key Set (RFC 7517), or an https URL
	Headers  []ClaimHeader // in the order of their claims
}

// KeysURL returns true if the keys come from a URL, and not from a file.
func (j *JWTAuth) KeysURL() bool { return strings.Contains(j.Keys, "://") }

// ClaimHeader is an HTTP header in which an endpoint gets a claim of a token.
type ClaimHeader struct {
	Claim  string
	Header string
}

// Files returns the files that the entry names. Empty names are in it, too.
func (a *Auth) Files() (all []string) {
	if a.Basic != nil {
		all = append(all, a.Basic.File)
	}
	if a.JWT != nil && !a.JWT.KeysURL() {
		all = append(all, a.JWT.Keys)
	}
	return all
}

// AssertedHeaders returns the names of the HTTP headers that entries of auth set. weir drops them from
// the requests of all clients.
func (c *Config) AssertedHeaders() []string { return assertedBy(c.Auth) }

// assertedBy returns the names of the HTTP headers that entries of auth set.
func assertedBy(entries []Auth) (all []string) {
	for i := range entries {
		a := &entries[i]
		if a.Basic != nil && a.Basic.Object == "" {
			all = append(all, BasicUserHeader)
		}
		if a.Forward != nil {
			all = append(all, a.Forward.Headers...)
		}
		if a.JWT != nil {
			for _, h := range a.JWT.Headers {
				all = append(all, h.Header)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func newAuth(name string) *Auth { return &Auth{Name: name} }

func (a *Auth) name() string { return a.Name }

func (a *Auth) section() section {
	return section{object: a, position: &a.Position, check: a.check, rules: authRules, keys: []key{
		{"basic", optional(&a.Basic, func() *BasicAuth { return &BasicAuth{Realm: "Restricted"} }, (*BasicAuth).section).byDefault("none"), "Users and passwords from a file (HTTP Basic)."},
		{"forward", optional(&a.Forward, func() *ForwardAuth { return &ForwardAuth{Timeout: 5 * time.Second} }, (*ForwardAuth).section).byDefault("none"), "Another server decides on each request."},
		{"jwt", optional(&a.JWT, func() *JWTAuth { return &JWTAuth{} }, (*JWTAuth).section).byDefault("none"), "Signed tokens (JWT) in the Authorization header."},
	}}
}

var authRules = []*schema{hasOne("basic", "forward", "jwt")}

func (a *Auth) check(v *draft, there keySet, n *Tree, p path) {
	if n.Shape != ShapeMapping {
		return // already reported
	}
	switch found := len(there); {
	case found == 0:
		v.fail(n, p, `needs one of basic, forward and jwt, such as "basic: {file: users.htpasswd}"`)
	case found > 1:
		v.fail(n, p, "has more than one of basic, forward and jwt; keep one, and make another entry for the other")
	}
}

func (b *BasicAuth) section() section {
	return section{object: b, keys: []key{
		{"file", text(&b.File).required("users.htpasswd"), "The file of users, one \"user:hash\" for each line, as the command htpasswd writes it: bcrypt, sha256-crypt, sha512-crypt, apr1 or {SHA}. weir reads it again when it changes."},
		{"realm", realm.at(&b.Realm), "The name of the protected area, which browsers show when they ask for the password."},
	}}
}

// realm is the text of a quoted string in an HTTP header.
var realm = kind[string]{what: "a name in ASCII without quotation marks and backslashes", format: same[string], pattern: `[ !#-\[\]-~]{1,128}`,
	parse: func(s string) (string, error) {
		if len(s) > 128 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			return "", fmt.Errorf("is no name of up to 128 characters in ASCII without quotation marks and backslashes")
		}
		return s, nil
	}}

func (f *ForwardAuth) section() section {
	return section{object: f, keys: []key{
		{"url", webURL(&f.URL, "http://127.0.0.1:4180/check", canRequest).required("http://127.0.0.1:4180/check"), "weir requests this URL for each request. A 2xx response lets the request pass; 3xx and 4xx responses go to the client."},
		{"headers", list(&f.Headers, assertedHeader.at), "HTTP headers of the 2xx response that the endpoint gets. weir drops headers of these names from the requests of all clients."},
		{"sign_in", signIn.at(&f.SignIn), "The URL to which weir redirects browsers instead of a 401. {url} stands for the URL of the request, percent-encoded."},
		{"timeout", duration(&f.Timeout, 100*time.Millisecond, time.Minute), "How long weir waits for the response."},
	}}
}

// canRequest refuses URLs that weir cannot request.
func canRequest(u *url.URL) error {
	if strings.ContainsAny(u.Path+u.RawQuery, "{}") {
		return errors.New("has braces, but there are no variables here; the server gets the URL of the request in X-Original-URL")
	}
	_, _, err := BackendOfURL("", u.String())
	return err
}

// Backend returns the name of the backend for weir's own requests for an entry. No backend of the
// configuration can have it.
func (a *Auth) Backend() string { return "auth/" + a.Name }

// deriveAuth adds the backends of the entries that need one.
func (c *Config) deriveAuth() {
	for i := range c.Auth {
		a, text := &c.Auth[i], ""
		switch {
		case a.Forward != nil:
			text = a.Forward.URL
		case a.JWT != nil && a.JWT.KeysURL():
			text = a.JWT.Keys
		default:
			continue
		}
		if b, _, err := BackendOfURL(a.Backend(), text); err == nil { // the URL was checked
			c.Derive(b)
		}
	}
}

// signIn is a URL that may have the variable {url}.
var signIn = kind[string]{what: "a URL such as https://login.example.org/?rd={url}", format: same[string], pattern: `[Hh][Tt][Tt][Pp][Ss]?://.+`,
	parse: func(s string) (string, error) {
		plain := strings.ReplaceAll(s, SignInURL, "x")
		u, err := url.Parse(plain)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || strings.ContainsFunc(plain, func(r rune) bool { return r <= ' ' || r > '~' }):
			return "", errors.New(`is not an http or https URL; write one such as "https://login.example.org/?rd={url}"`)
		case u.User != nil:
			return "", errors.New("contains a user name or password, which clients would see; take it out")
		case strings.ContainsAny(plain, "{}"):
			return "", errors.New("has a variable other than {url}; take it out")
		case strings.Contains(beforePath(s), SignInURL):
			return "", errors.New("has {url} in its host; write it into the query, such as ?rd={url}")
		}
		return s, nil
	}}

// beforePath returns the scheme and the host of a URL.
func beforePath(s string) string {
	_, rest, _ := strings.Cut(s, "://")
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

func (j *JWTAuth) section() section {
	return section{object: j, keys: []key{
		{"issuer", text(&j.Issuer).required("https://issuer.example.org"), "The claim iss that each token must have."},
		{"audience", list(&j.Audience, text).required("[shop]"), "The claim aud of each token must contain one of these."},
		{"keys", keysOf.at(&j.Keys).required("jwks.json"), "The keys that sign tokens (JSON Web Key Set): a file, which weir reads again when it changes, or an https URL, which it requests again from time to time."},
		{"headers", claimHeaders(&j.Headers), "Claims that the endpoint gets in HTTP headers: the name of the claim, and the name of the header. weir drops headers of these names from the requests of all clients."},
	}}
}

// keysOf is a path or an https URL.
var keysOf = kind[string]{what: "a file, or an https URL", format: same[string],
	parse: func(s string) (string, error) {
		if !strings.Contains(s, "://") {
			return s, nil
		}
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Hostname() == "" || u.Fragment != "" || message.AmbiguousPath([]byte(u.EscapedPath())):
			return "", errors.New(`is not a URL; write one such as "https://issuer.example.org/keys.json", or the path of a file`)
		case u.User != nil:
			return "", errors.New("contains a user name or password, which logs would show; take it out")
		case u.Scheme != "https":
			return "", errors.New("is not encrypted, so an attacker in the network could replace the keys; write https://, or the path of a file")
		}
		return s, nil
	}}

// assertedHeader is the name of an HTTP header in which an endpoint gets who sent the request.
var assertedHeader = headerName(refuseAsserted)

func refuseAsserted(id message.ID) string {
	if id == message.Authorization {
		return "contains the client's credentials, so weir cannot drop it from all requests; use another header"
	}
	return refuseRequestEdit(id)
}

// mostClaims limits the headers of an entry.
const mostClaims = 32

// claimHeaders is the value of a key with a mapping of claims to the names of headers.
func claimHeaders(dst *[]ClaimHeader) value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			v.mark(dst, n, p)
			first := map[string]int{}
			v.mapping(n, p, func(key, value *Tree) {
				one := ClaimHeader{Claim: key.Text}
				v.set(assertedHeader.at(&one.Header), key, value, p.key(key.Text))
				lower := strings.ToLower(one.Header)
				line, twice := first[lower]
				switch {
				case one.Header == "": // already reported
				case twice:
					v.fail(value, p.key(key.Text), "the header %q is already used on line %d; give each claim its own", one.Header, line)
				default:
					first[lower] = value.Line
					*dst = append(*dst, one)
				}
			})
			if n.Shape == ShapeMapping && (len(n.Parts) == 0 || len(*dst) > mostClaims) {
				v.fail(n, p, "has to have 1 to %d claims; or take the key out", mostClaims)
			}
			slices.SortFunc(*dst, func(a, b ClaimHeader) int { return strings.Compare(a.Claim, b.Claim) })
		},
		print: func(*shower) *Tree {
			all := &Tree{Shape: ShapeMapping}
			for _, one := range *dst {
				all.put(one.Claim, textTree(one.Header))
			}
			return all.unlessEmpty()
		},
		schema: func() *schema {
			return &schema{Type: "object", MinProperties: 1, AdditionalProperties: assertedHeader.at(new(string)).schema()}
		},
	}
}

// authNamed returns the entry of auth with this name, or nil.
func (v *draft) authNamed(name string) *Auth {
	for _, a := range v.auth {
		if a.Name == name {
			return a
		}
	}
	return nil
}

// checkAuth reports a route whose requests cannot be authenticated.
func (v *draft) checkAuth(r *Route) {
	checkName(v, &r.Auth, "way to authenticate", v.auth, (*Auth).name)
	if r.Satisfy == SatisfyAny && (r.Auth == "" || r.Clients == nil || len(r.Clients.Allow) == 0) {
		v.failAt(v.places[&r.Satisfy], "any means that clients.allow or auth is enough, so the route needs both; give both, or take this out")
	}
	a := v.authNamed(r.Auth)
	switch {
	case a == nil:
	case a.Forward != nil && a.Forward.SignIn != "" && !v.given(&r.Hosts):
		v.failAt(v.places[&r.Auth], "sign_in of %q tells the sign-in page the URL of the request, so the route needs hosts; give it some, or take sign_in out", a.Name)
	}
}

// authFiles reads the files of the entries, and checks them.
func (v *draft) authFiles(resolve func(...*string)) {
	for _, a := range v.auth {
		if a.Basic != nil && a.Basic.File != "" {
			resolve(&a.Basic.File)
			v.authFile(&a.Basic.File, checkUsers)
		}
		if a.JWT != nil && a.JWT.Keys != "" && !a.JWT.KeysURL() {
			resolve(&a.JWT.Keys)
			v.authFile(&a.JWT.Keys, func(data []byte) error {
				_, err := jwt.ParseKeys(data)
				return err
			})
		}
	}
}

// authFile checks a file. If a file that is already in use cannot be used now, that is a warning,
// and the former content stays in use.
func (v *draft) authFile(file *string, check func([]byte) error) {
	data, err := ReadAuthFile(*file)
	if err == nil {
		err = check(data)
	}
	switch {
	case err == nil:
	case v.inUse.Auth != nil && v.inUse.Auth(*file):
		v.warnAt(v.places[file], "%s %v"+keptFile, v.quote(file, *file), err)
	default:
		v.failAt(v.places[file], "%s %v", v.quote(file, *file), err)
	}
}

// maxAuthFile limits a file of users or keys, in bytes.
const maxAuthFile = 8 << 20

// ReadAuthFile reads a file of users or keys. Its error is the end of a sentence that begins with
// the file's name.
func ReadAuthFile(path string) ([]byte, error) {
	data, err := disk.Read(path, maxAuthFile)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w; give the path of a file, starting at the configuration's folder", reason(err))
	}
	return data, nil
}

func checkUsers(data []byte) error {
	if _, err := htpasswd.Parse(data); err != nil {
		return fmt.Errorf("is no file of users: %w", err)
	}
	return nil
}
