package config

// Secret is text that String and Effective never show.
type Secret string

// String returns a Placeholder, so that a secret is not logged by mistake.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Placeholder
}

// GoString hides the secret from %#v.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret from encoders, including the encoders of logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
