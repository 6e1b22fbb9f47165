package config

// Reverse turns names in the responses of endpoints into those that the client uses, as ingress-nginx
// does. Only objects have it.
type Reverse struct {
	Location     Replacement // of the beginning of Location, and of the URL in Refresh
	Relative     bool        // a path in a new Location stays a path; otherwise it gets the scheme and the host
	CookieDomain Replacement // of the whole Domain of a cookie, in upper or lower case
	CookiePath   Replacement // of the beginning of the Path of a cookie
}

// Replacement replaces From with To. An empty From replaces nothing.
type Replacement struct{ From, To string }
