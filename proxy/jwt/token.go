package jwt

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
)

const (
	// MaxToken limits a token, in bytes.
	MaxToken = 8 << 10
	// Skew is how far the clocks of this machine and of the issuer may differ.
	Skew = 30 * time.Second
	// mostTries limits the keys that are tried for a token without a key id.
	mostTries = 4
)

// Requirements are what a token has to claim.
type Requirements struct {
	Issuer   string
	Audience []string // one of them
}

// Claims are the verified claims of a token.
type Claims struct {
	// Until is when the token expires, with the allowed skew.
	Until time.Time
	all   map[string]json.RawMessage
}

// A Token is a token that has been read, but not verified.
type Token struct {
	signed  *jose.JSONWebSignature
	fitting []*jose.JSONWebKey // the keys that may have signed it, at least one
	unknown bool               // the token names a key that the set does not have
}

// Read reads a token in the compact form, and finds the keys that may have signed it. It computes
// no signature. The error is for the log only: it would help an attacker.
func (k *Keys) Read(token string) (*Token, error) {
	if len(token) > MaxToken {
		return nil, fmt.Errorf("the token is longer than %d bytes", MaxToken)
	}
	if err := checkHeader(token); err != nil {
		return nil, err
	}
	signed, err := jose.ParseSignedCompact(token, algorithms)
	if err != nil {
		return nil, fmt.Errorf("the token is malformed: %w", err)
	}
	t := &Token{signed: signed}
	header := signed.Signatures[0].Protected
	t.fitting, t.unknown = k.fitting(header.KeyID, jose.SignatureAlgorithm(header.Algorithm))
	if len(t.fitting) == 0 {
		return nil, t.unsigned()
	}
	return t, nil
}

// Verify checks the signature and the claims of a token. It computes up to four signatures. The
// error is for the log only: it would help an attacker.
func (t *Token) Verify(required Requirements, now time.Time) (*Claims, error) {
	payload, err := t.payload()
	if err != nil {
		return nil, err
	}
	all, err := members(payload, claimNames)
	if err != nil {
		return nil, fmt.Errorf("the claims of the token are malformed: %w", err)
	}
	c := &Claims{all: all}
	return c, c.check(required, now)
}

// checkHeader refuses headers of a token with a meaning that weir does not know.
func checkHeader(token string) error {
	encoded, _, _ := strings.Cut(token, ".")
	text, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return errors.New("the header of the token is malformed")
	}
	header, err := members(text, headerNames)
	if err != nil {
		return fmt.Errorf("the header of the token is malformed: %w", err)
	}
	for _, name := range headerNames[2:] {
		if _, has := header[name]; has {
			return fmt.Errorf("the header of the token has %q, which weir does not support", name)
		}
	}
	return nil
}

// ErrUnknownKey is the error for a token that names a key which the set does not have. The set may be
// older than the key.
var ErrUnknownKey = errors.New("the token names a key that the set does not have")

// fitting returns the keys that may have signed a token with this key id and algorithm. If the set
// has keys with the id, no others fit; otherwise a key without an id may be the one. Without an id
// all keys may be. unknown means that no key has the id.
func (k *Keys) fitting(id string, algorithm jose.SignatureAlgorithm) (keys []*jose.JSONWebKey, unknown bool) {
	unknown = id != "" && !slices.ContainsFunc(k.all, func(key jose.JSONWebKey) bool { return key.KeyID == id })
	for i := range k.all {
		key := &k.all[i]
		switch {
		case len(keys) == mostTries:
			return keys, unknown
		case !fits(key, algorithm):
		case id == "", !unknown && key.KeyID == id, unknown && key.KeyID == "":
			keys = append(keys, key)
		}
	}
	return keys, unknown
}

// payload returns what a key of the set has signed. It uses no key that the token itself contains or
// names by a URL.
func (t *Token) payload() ([]byte, error) {
	for _, key := range t.fitting {
		if payload, err := t.signed.Verify(key.Key); err == nil {
			return payload, nil
		}
	}
	return nil, t.unsigned()
}

// unsigned returns the error of a token that no key has signed.
func (t *Token) unsigned() error {
	if t.unknown {
		return ErrUnknownKey
	}
	return errors.New("no key has signed the token")
}

// The members of the header and of the claims whose meaning weir knows.
var (
	headerNames = []string{"alg", "kid", "crit", "b64", "zip"}
	claimNames  = []string{"iss", "aud", "exp", "nbf", "sub"}
)

// members returns the members of a JSON object. Errors are what programs read in more than one way:
// two members of one name, a name in another case than the known one, bytes that are not UTF-8, and
// anything behind the object.
func members(text []byte, known []string) (map[string]json.RawMessage, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is not in UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil { // also for what is behind the value
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil, errors.New("it is no JSON object")
	}
	all := map[string]json.RawMessage{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, err
		}
		key := name.(string) // of an object
		if _, twice := all[key]; twice {
			return nil, fmt.Errorf("%.64q is there twice", key)
		}
		if i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) }); i >= 0 && known[i] != key {
			return nil, fmt.Errorf("it has %.64q in place of %q", key, known[i])
		}
		if strings.ContainsRune(key, utf8.RuneError) { // so the decoder shows half of a surrogate pair
			return nil, fmt.Errorf("%.64q is not a text", key)
		}
		all[key] = value
	}
	return all, nil
}

func (c *Claims) check(required Requirements, now time.Time) error {
	if issuer, _ := c.text("iss"); issuer != required.Issuer {
		return fmt.Errorf("the token is of another issuer: its iss is %.128q, and issuer of the entry is %q", issuer, required.Issuer)
	}
	audience, err := c.list("aud")
	if err != nil || !slices.ContainsFunc(audience, func(a string) bool { return slices.Contains(required.Audience, a) }) {
		return fmt.Errorf("the token is for another audience: its aud is %.128s", cmp.Or(string(c.all["aud"]), "missing"))
	}
	expires, has, err := c.time("exp")
	switch {
	case err != nil:
		return err
	case !has:
		return errors.New("the token never expires: it has no exp")
	}
	if c.Until = expires.Add(Skew); !now.Before(c.Until) {
		return fmt.Errorf("the token has expired: its exp is %s", expires.UTC().Format(time.RFC3339))
	}
	begins, has, err := c.time("nbf")
	if err != nil {
		return err
	}
	if has && now.Add(Skew).Before(begins) {
		return fmt.Errorf("the token is not valid yet: its nbf is %s", begins.UTC().Format(time.RFC3339))
	}
	return nil
}

func (c *Claims) text(name string) (s string, ok bool) {
	raw, has := c.all[name]
	ok = has && json.Unmarshal(raw, &s) == nil && !bytes.Equal(raw, []byte("null"))
	return s, ok
}

// list returns a claim that is a text or a list of texts.
func (c *Claims) list(name string) (all []string, err error) {
	if s, is := c.text(name); is {
		return []string{s}, nil
	}
	return all, json.Unmarshal(c.all[name], &all)
}

func (c *Claims) time(name string) (t time.Time, has bool, err error) {
	raw, has := c.all[name]
	if !has {
		return t, false, nil
	}
	var seconds float64
	if err := json.Unmarshal(raw, &seconds); err != nil || bytes.Equal(raw, []byte("null")) || math.IsNaN(seconds) || seconds < 0 || seconds > 1e11 {
		return t, true, fmt.Errorf("the claim %s of the token is no time", name)
	}
	return time.Unix(int64(seconds), 0), true, nil
}

// maxValue limits a value for an HTTP header, in bytes.
const maxValue = 1024

// Value returns a claim as the value of an HTTP header. A list has commas between its elements.
// ok is false if there is no such claim, or if it is empty. The error means that the claim cannot be such a value
// unambiguously, for example because it contains the end of a line.
func (c *Claims) Value(name string) (value string, ok bool, err error) {
	raw, has := c.all[name]
	if !has || bytes.Equal(raw, []byte("null")) {
		return "", false, nil
	}
	if list, err := c.list(name); err == nil {
		if _, single := c.text(name); !single && slices.ContainsFunc(list, func(s string) bool { return strings.Contains(s, ",") }) {
			return "", false, fmt.Errorf("the claim %s has a comma in an element of its list", name)
		}
		value = strings.Join(list, ",")
	} else if value = string(raw); raw[0] == '{' || raw[0] == '[' {
		return "", false, fmt.Errorf("the claim %s is neither a value nor a list of texts", name)
	}
	if len(value) > maxValue || value != strings.TrimSpace(value) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return "", false, fmt.Errorf("the claim %s cannot be the value of an HTTP header", name)
	}
	return value, value != "", nil
}
