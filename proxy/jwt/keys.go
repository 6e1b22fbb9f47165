// Package jwt verifies signed JSON Web Tokens (RFC 7519) with the keys of a set (RFC 7517). It
// accepts only public-key signatures: with a shared secret, everybody who can verify a token could
// make one.
package jwt

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// Keys is a set of public keys. It is immutable.
type Keys struct {
	all   []jose.JSONWebKey
	texts []string // of all, sorted
}

// Equal reports whether two sets have the same keys, in any order.
func (k *Keys) Equal(other *Keys) bool { return slices.Equal(k.texts, other.texts) }

// Limits of a set, so that a token costs little to verify.
const (
	mostKeys = 100
	leastRSA = 2048 // bits
	mostRSA  = 4096 // go-jose refuses larger ones
)

// ParseKeys reads a JSON Web Key Set. It ignores keys that are not for signatures, and kinds of
// keys that it does not know. The error is the end of a sentence.
func ParseKeys(data []byte) (*Keys, error) {
	set, err := members(data, []string{"keys"})
	if err != nil {
		return nil, fmt.Errorf("is no JSON Web Key Set: %w", err)
	}
	var all []json.RawMessage
	if list, has := set["keys"]; has {
		if err := json.Unmarshal(list, &all); err != nil {
			return nil, fmt.Errorf("is no JSON Web Key Set: %w", err)
		}
	}
	if len(all) > mostKeys {
		return nil, fmt.Errorf("has more than %d keys; take out the ones that are not in use", mostKeys)
	}
	k := new(Keys)
	for i, raw := range all {
		key, err := parseKey(raw)
		if err != nil {
			return nil, fmt.Errorf("has a key that cannot be used, the one with the index %d: %w", i, err)
		}
		if key != nil {
			text, err := key.MarshalJSON()
			if err != nil {
				return nil, fmt.Errorf("has a key that cannot be used, the one with the index %d: %w", i, err)
			}
			k.all, k.texts = append(k.all, *key), append(k.texts, string(text))
		}
	}
	if len(k.all) == 0 {
		return nil, errors.New("has no public key for signatures (RSA, EC or Ed25519); give a JSON Web Key Set with one")
	}
	slices.Sort(k.texts)
	return k, nil
}

// keyNames are the members of a public key that have a meaning (RFC 7517 and RFC 7518).
var keyNames = []string{"kty", "use", "key_ops", "alg", "kid", "crv", "x", "y", "n", "e"}

// parseKey returns nil for a key that is ignored.
func parseKey(raw []byte) (*jose.JSONWebKey, error) {
	about, err := members(raw, keyNames)
	if err != nil {
		return nil, err
	}
	kind, use := "", ""
	for name, to := range map[string]*string{"kty": &kind, "use": &use} {
		if value, has := about[name]; has {
			if err := json.Unmarshal(value, to); err != nil {
				return nil, err
			}
		}
	}
	if use != "" && use != "sig" {
		return nil, nil
	}
	switch kind {
	case "RSA", "EC", "OKP":
	case "oct":
		return nil, errors.New("it is a shared secret, and everybody who verifies tokens with it could make them; use a key pair")
	default:
		return nil, nil
	}
	key := new(jose.JSONWebKey)
	if err := key.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		if n := public.N.BitLen(); n < leastRSA || n > mostRSA {
			return nil, fmt.Errorf("an RSA key of %d bits; use one of %d to %d", n, leastRSA, mostRSA)
		}
	case *ecdsa.PublicKey, ed25519.PublicKey:
	default:
		if !key.IsPublic() {
			return nil, errors.New("it is a private key, which weir does not need; give only its public part")
		}
		return nil, nil
	}
	if !key.Valid() {
		return nil, errors.New("it is not valid")
	}
	return key, nil
}

// algorithms are the accepted ones.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// fits reports whether a key is for tokens with this algorithm.
func fits(key *jose.JSONWebKey, algorithm jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(algorithm) {
		return false
	}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		return slices.Contains(algorithms[:6], algorithm)
	case *ecdsa.PublicKey:
		switch algorithm {
		case jose.ES256:
			return public.Curve == elliptic.P256()
		case jose.ES384:
			return public.Curve == elliptic.P384()
		case jose.ES512:
			return public.Curve == elliptic.P521()
		}
	case ed25519.PublicKey:
		return algorithm == jose.EdDSA
	}
	return false
}
