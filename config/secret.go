package config

// Secret is text that String and Effective never show.
type Secret string

// String returns a placeholder, so that a secret is not logged by mistake.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return placeholder
}

// GoString hides it from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides it from encoders, those of logs included.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
