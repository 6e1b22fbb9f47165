package config

// HashPart is a part of the key by which a backend with balance: hash chooses an endpoint for a
// request, in place of the client address. Exactly one field is not empty. Only routes made from
// Kubernetes objects have such keys.
type HashPart struct {
	Text     string
	Variable Variable // not VariableRequestID
	// The names of an HTTP header in lower case, in which _ stands for any byte other than letters
	// and digits; of a cookie; and of a query parameter, whose value is not decoded.
	Header, Cookie, Query string
}
