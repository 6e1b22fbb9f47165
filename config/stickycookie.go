package config

// StickyCookie is how a route writes the cookie for the sticky sessions of its backend. Only routes
// made from Kubernetes objects have it. A backend of the file writes the cookie of its Sticky.
type StickyCookie struct {
	Name, Path string
	Domain     string // empty: none
	// SameSite is None, Lax, Strict or empty. NoneIfKnown leaves None out for clients that would
	// refuse the cookie because of it.
	SameSite    string
	NoneIfKnown bool
	Secure      bool // also without TLS
	// Moves means that a client whose endpoint failed gets the cookie of the next one. Otherwise it
	// keeps its cookie while weir knows the endpoint.
	Moves           bool
	MaxAge, Expires Lifetime
}

// Lifetime is how long clients keep a cookie.
type Lifetime struct {
	Given   bool // false: until the browser ends
	Seconds int64
}
