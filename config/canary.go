package config

// Canary chooses between the two backends of a route by an HTTP header, or else by a cookie.
// Requests that neither chooses share the backends by weight. Only routes made from Kubernetes
// objects have it.
type Canary struct {
	// Header is the name of a header; empty: none. A request goes to the second backend if the
	// first header of the name has the value Value, or if Value is empty and Pattern (RE2) matches
	// somewhere in it, or if both are empty and it is "always". With "never" it then goes to the
	// first backend. If Pattern is invalid, each request with the header goes to the first backend.
	Header, Value, Pattern string
	// Cookie is the name of a cookie: a request with the value "always" goes to the second backend,
	// one with "never" to the first. Empty: none.
	Cookie string
}
