package message

// HTTP authenticates requests, but these schemes authenticate the connection: every later
// request on it belongs to the same user (RFC 4559, section 6; MS-NTHT, section 1.3).
var connectionSchemes = [...]string{"ntlm", "negotiate", "nego2", "kerberos"}

// The HTTP headers that may contain such a scheme, in a request and in a response.
var (
	credentialIDs = SetOf(Authorization)
	challengeIDs  = SetOf(WWWAuthenticate, ProxyAuthenticate, PersistentAuth)
)

func bindsConnection(scheme []byte) bool {
	for _, s := range connectionSchemes {
		if EqualFold(scheme, s) {
			return true
		}
	}
	return false
}

// AuthenticatesConnection returns true if the request h has credentials of a scheme that
// authenticates the connection. It ignores dropped fields, such as credentials for a proxy,
// because they are not sent.
func (h *Head) AuthenticatesConnection() bool {
	if !h.HasAny(credentialIDs) {
		return false
	}
	for i := range h.Fields {
		if f := &h.Fields[i]; f.ID == Authorization && !f.Dropped {
			v := h.Value(i)
			if bindsConnection(v[:tokenLength(v)]) {
				return true
			}
		}
	}
	return false
}

// AsksForConnection returns true if the response h asks for such credentials, continues
// their exchange, or reports that they are valid for the connection. A value that is not a
// list of challenges also counts.
func (h *Head) AsksForConnection() bool {
	if !h.HasAny(challengeIDs) {
		return false
	}
	for i := range h.Fields {
		switch h.Fields[i].ID {
		case WWWAuthenticate, ProxyAuthenticate:
			if challengesBind(h.Value(i)) {
				return true
			}
		case PersistentAuth: // from Microsoft: Kerberos authenticated the connection
			if !EqualFold(h.Value(i), "false") {
				return true
			}
		}
	}
	return false
}

// challengesBind searches a list of challenges (RFC 9110, section 11.6.1). Its elements are
// schemes, with or without a first parameter, and further parameters of the previous
// scheme. Commas within quoted strings do not separate elements.
func challengesBind(list []byte) bool {
	for len(list) > 0 {
		list = skipSpace(list)
		name := list[:tokenLength(list)]
		list = skipSpace(list[len(name):])
		parameter := len(list) > 0 && list[0] == '='
		if !parameter && bindsConnection(name) {
			return true
		}
		var whole bool
		if list, whole = nextElement(list); !whole {
			return true
		}
	}
	return false
}

// nextElement returns the rest of the list after the first element. whole is false if a
// quoted string has no end.
func nextElement(list []byte) (next []byte, whole bool) {
	quoted := false
	for i := 0; i < len(list); i++ {
		switch c := list[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == ',' && !quoted:
			return list[i+1:], true
		}
	}
	return nil, !quoted
}

func tokenLength(b []byte) int {
	for i, c := range b {
		if !tokenByte[c] {
			return i
		}
	}
	return len(b)
}

func skipSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	return b
}
