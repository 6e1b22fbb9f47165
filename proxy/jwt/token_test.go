package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

var (
	rsaKey, _    = rsa.GenerateKey(rand.Reader, 2048)
	ecKey, _     = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edKey, _  = ed25519.GenerateKey(rand.Reader)
	other, _     = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	now          = time.Unix(1_800_000_000, 0)
	required     = Requirements{Issuer: "https://issuer.test", Audience: []string{"shop", "store"}}
	ordinaryBody = `{"iss":"https://issuer.test","aud":"shop","exp":1800000100,"sub":"ada"}`
)

func set(keys ...jose.JSONWebKey) []byte {
	data, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		panic(err)
	}
	return data
}

func testKeys(t testing.TB) *Keys {
	t.Helper()
	k, err := ParseKeys(set(jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "rsa"}, jose.JSONWebKey{Key: ecKey.Public(), KeyID: "ec"}, jose.JSONWebKey{Key: edKey.Public(), KeyID: "ed"}))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// verify reads and verifies a token.
func verify(k *Keys, token string, required Requirements, now time.Time) (*Claims, error) {
	read, err := k.Read(token)
	if err != nil {
		return nil, err
	}
	return read.Verify(required, now)
}

func signed(t testing.TB, alg jose.SignatureAlgorithm, key crypto.PrivateKey, kid, body string) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, err := s.Sign([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	token, err := one.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func part(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func TestVerify(t *testing.T) {
	k := testKeys(t)
	f := func(token, want string) {
		t.Helper()
		_, err := verify(k, token, required, now)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.80s: %v, want %q", token, err, want)
		}
	}
	for _, alg := range algorithms[:6] {
		f(signed(t, alg, rsaKey, "rsa", ordinaryBody), "")
	}
	f(signed(t, jose.ES256, ecKey, "ec", ordinaryBody), "")
	f(signed(t, jose.EdDSA, edKey, "ed", ordinaryBody), "")
	f(signed(t, jose.ES256, ecKey, "", ordinaryBody), "")
	body := func(text string) string { return signed(t, jose.ES256, ecKey, "ec", text) }
	claims := func(more string) string { return body(`{"iss":"https://issuer.test","aud":"shop",` + more + `}`) }
	f(body(`{"iss":"https://issuer.test","aud":["x","store"],"exp":1800000100}`), "")
	f(body(`{"iss":"https://issuer.test","aud":["x"],"exp":1800000100}`), "another audience")
	f(body(`{"iss":"https://issuer.test","exp":1800000100}`), "its aud is missing")
	f(body(`{"iss":"https://issuer.test/","aud":"shop","exp":1800000100}`), `its iss is "https://issuer.test/", and issuer of the entry is "https://issuer.test"`)
	f(body(`{"ISS":"https://issuer.test","aud":"shop","exp":1800000100}`), `it has "ISS" in place of "iss"`)
	f(claims(`"sub":"a"`), "never expires")
	f(claims(`"exp":null`), "no time")
	f(claims(`"exp":"1800000100"`), "no time")
	f(claims(`"exp":1e300`), "no time")
	f(claims(`"exp":1799999971`), "")
	f(claims(`"exp":1799999970`), "has expired")
	f(claims(`"exp":1800000100,"nbf":1800000030`), "")
	f(claims(`"exp":1800000100,"nbf":1800000031`), "not valid yet")
	f(claims(`"exp":1,"exp":1800000100`), "twice")
	f(body(`[1]`), "no JSON object")
	f(body(ordinaryBody+"\n "), "")
	for _, behind := range []string{"}", "]", "}{", "]x", "{}", "x", "\x00", `,"exp":1`} {
		f(body(ordinaryBody+behind), "after top-level value")
	}
	f(claims(`"exp":1,"EXP":1800000100`), `"EXP" in place of "exp"`)
	f(claims(`"exp":1800000100,"i\u017fs":"https://other.test"`), `in place of "iss"`) // Go's own JSON takes the long s for s
	f(claims(`"exp":1800000100,"a\ud800":1`), "not a text")
	f(claims("\"exp\":1800000100,\"a\xff\":1"), "not in UTF-8")
	f(claims(`"exp":1800000100,"Sub":"a","sub":"b"`), `"Sub" in place of "sub"`)
	f(claims(`"exp":1800000100,"Name":"a","name":"b"`), "") // weir gives neither a meaning
}

// Attacks that worked on other programs.
func TestAttacks(t *testing.T) {
	k := testKeys(t)
	f := func(token string) {
		t.Helper()
		if c, err := verify(k, token, required, now); err == nil {
			t.Errorf("%.100s: accepted with %v", token, c)
		}
	}
	for _, alg := range []string{"none", "None", "NONE", ""} {
		f(part(`{"alg":"`+alg+`"}`) + "." + part(ordinaryBody) + ".")
	}
	der, err := x509.MarshalPKIXPublicKey(rsaKey.Public()) // the public key as the secret of HMAC
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range [][]byte{der, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})} {
		text := part(`{"alg":"HS256","kid":"rsa"}`) + "." + part(ordinaryBody)
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(text))
		f(text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
	}
	f(signed(t, jose.ES256, other, "ec", ordinaryBody))
	for _, kid := range []string{"rsa", "../../dev/null", "' OR 1=1", "ec\x00"} {
		f(signed(t, jose.ES256, ecKey, kid, ordinaryBody))
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: other}, &jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	one, _ := s.Sign([]byte(ordinaryBody))
	token, _ := one.CompactSerialize()
	f(token) // its own key is in the header
	good := signed(t, jose.ES256, ecKey, "ec", ordinaryBody)
	parts := strings.Split(good, ".")
	f(parts[0] + "." + part(strings.Replace(ordinaryBody, "ada", "eve", 1)) + "." + parts[2])
	f(parts[0] + "." + parts[1] + ".")
	f(parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64))) // CVE-2022-21449
	f(good + ".")
	f(one.FullSerialize())
	f(strings.Repeat("a", MaxToken+1))
	f(part(`{"alg":"ES256","alg":"none"}`) + "." + parts[1] + "." + parts[2])
	for _, header := range []string{`"crit":["exp"]}`, `"b64":false}`, `"zip":"DEF"}`, `"CRIT":["exp"]}`, `"Alg":"none"}`, `"typ":"JWT"}}`, `"typ":"JWT"}]`} {
		text := part(`{"alg":"ES256","kid":"ec",`+header) + "." + parts[1]
		sum := sha256.Sum256([]byte(text))
		r, s, err := ecdsa.Sign(rand.Reader, ecKey, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		var signature [64]byte
		r.FillBytes(signature[:32])
		s.FillBytes(signature[32:])
		f(text + "." + base64.RawURLEncoding.EncodeToString(signature[:]))
	}
}

func TestParseKeys(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		if _, err := ParseKeys([]byte(text)); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.80s: %v, want %q", text, err, want)
		}
	}
	good := strings.TrimSuffix(strings.TrimPrefix(string(set(jose.JSONWebKey{Key: ecKey.Public()})), `{"keys":[`), "]}\n")
	good = strings.TrimSuffix(good, "]}")
	f(`{"keys":[`+good+`,{"kty":"new"},{"kty":"RSA","use":"enc"}]}`, "")
	f(`x`, "no JSON Web Key Set")
	f(`{"keys":[`+good+`]}}`, "no JSON Web Key Set")
	f(`{"keys":[`+good+`]}]`, "no JSON Web Key Set")
	f(`{"KEYS":[`+good+`]}`, `"KEYS" in place of "keys"`)
	f(`{"keys":[`+good+`],"keys":[]}`, "twice")
	f(`{"keys":[`+strings.TrimSuffix(good, "}")+`,"USE":"enc"}]}`, `"USE" in place of "use"`)
	f(`{"keys":[`+strings.TrimSuffix(good, "}")+`,"use":"sig","use":"enc"}]}`, "twice")
	f(`{}`, "no public key")
	f(`{"keys":[]}`, "no public key")
	f(`{"keys":[{"kty":"oct","k":"aGk"}]}`, "shared secret")
	f(`{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}`, "bits")
	f(`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}`, "cannot be used")
	f(string(set(jose.JSONWebKey{Key: ecKey})), "private key")
	f(`{"keys":[`+strings.Repeat(good+",", mostKeys)+good+`]}`, "more than 100 keys")
}

// A claim never adds a line to a request, and a list has one meaning.
func TestValue(t *testing.T) {
	f := func(claim, want string, has, fails bool) {
		t.Helper()
		c := &Claims{all: map[string]json.RawMessage{"a": json.RawMessage(claim)}}
		if got, ok, err := c.Value("a"); got != want || ok != has || (err != nil) != fails {
			t.Errorf("%s: %q, %t, %v", claim, got, ok, err)
		}
	}
	f(`"ada"`, "ada", true, false)
	f(`"a, b"`, "a, b", true, false)
	f(`5`, "5", true, false)
	f(`true`, "true", true, false)
	f(`["a","b"]`, "a,b", true, false)
	f(`null`, "", false, false)
	f(`""`, "", false, false)
	f(`[]`, "", false, false)
	f(`[""]`, "", false, false)
	f(`-1.5e3`, "-1.5e3", true, false)
	f(`false`, "false", true, false)
	f(`["a","b\nX-User: root"]`, "", false, true)
	f(`"a\u007f"`, "", false, true)
	f(`["a","b,c"]`, "", false, true)
	f(`{"b":1}`, "", false, true)
	f(`[1]`, "", false, true)
	f(`"a\r\nX-User: root"`, "", false, true)
	f(`"a\u0000"`, "", false, true)
	f(`"a\ud800"`, "", false, true) // half of a pair: all of them would be one user
	f(`" a"`, "", false, true)
	f(fmt.Sprintf("%q", strings.Repeat("a", maxValue+1)), "", false, true)
}

// The keys of a set have no order.
func TestKeysEqual(t *testing.T) {
	f := func(same bool, a, b []byte) {
		t.Helper()
		first, err := ParseKeys(a)
		second, err2 := ParseKeys(b)
		if err != nil || err2 != nil || first.Equal(second) != same {
			t.Errorf("%s and %s: %v, %v, want %t", a, b, err, err2, same)
		}
	}
	one, two := jose.JSONWebKey{Key: ecKey.Public(), KeyID: "1"}, jose.JSONWebKey{Key: other.Public(), KeyID: "2"}
	renamed := jose.JSONWebKey{Key: ecKey.Public(), KeyID: "3"}
	f(true, set(one, two), set(two, one))
	f(false, set(one, two), set(one))
	f(false, set(one), set(renamed))
}

// A token of a key that the set does not have says that the set may be old.
func TestUnknownKey(t *testing.T) {
	k := testKeys(t)
	for kid, unknown := range map[string]bool{"new": true, "ec": false, "rsa": false, "": false} {
		if _, err := verify(k, signed(t, jose.ES256, other, kid, ordinaryBody), required, now); errors.Is(err, ErrUnknownKey) != unknown {
			t.Errorf("%q: %v", kid, err)
		}
	}
}

// Only keys whose id and algorithm fit are tried, and four at most. A token without such a key costs no
// signature.
func TestFittingKeys(t *testing.T) {
	ec := func(id string) jose.JSONWebKey { return jose.JSONWebKey{Key: ecKey.Public(), KeyID: id} }
	f := func(want int, kid string, keys ...jose.JSONWebKey) {
		t.Helper()
		k, err := ParseKeys(set(keys...))
		if err != nil {
			t.Fatal(err)
		}
		read, err := k.Read(signed(t, jose.ES256, other, kid, ordinaryBody))
		if got := 0; want == 0 && err == nil || want > 0 && err != nil {
			t.Errorf("%q: %v", kid, err)
		} else if err == nil {
			if got = len(read.fitting); got != want {
				t.Errorf("%q: %d keys fit, want %d", kid, got, want)
			}
		}
	}
	rsa, ed := jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "a"}, jose.JSONWebKey{Key: edKey.Public()}
	signing := jose.JSONWebKey{Key: ecKey.Public(), KeyID: "a", Algorithm: "ES384"}
	f(1, "a", ec("a"), ec("b"), ec(""), rsa, ed)
	f(2, "a", ec("a"), ec("a"), ec(""))
	f(1, "new", ec("a"), ec("b"), ec(""), rsa, ed) // the key without an id
	f(0, "new", ec("a"), ec("b"), rsa, ed)
	f(0, "a", rsa, ed, ec("b"))
	f(0, "a", signing)
	f(3, "", ec("a"), ec("b"), ec(""), rsa, ed)
	f(4, "", ec("a"), ec("b"), ec("c"), ec("d"), ec("e"))
	f(0, "", rsa, ed)
}

// What a token with a wrong signature costs.
func BenchmarkVerifyJunk(b *testing.B) {
	p521, _ := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	p384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	for _, bits := range []int{2048, 4096} {
		key, err := rsa.GenerateKey(rand.Reader, bits)
		if err != nil {
			b.Fatal(err)
		}
		benchmarkJunk(b, fmt.Sprint("RS256/", bits), jose.RS256, key)
	}
	benchmarkJunk(b, "ES256", jose.ES256, ecKey)
	benchmarkJunk(b, "ES384", jose.ES384, p384)
	benchmarkJunk(b, "ES512", jose.ES512, p521)
	benchmarkJunk(b, "EdDSA", jose.EdDSA, edKey)
}

func benchmarkJunk(b *testing.B, name string, alg jose.SignatureAlgorithm, key crypto.Signer) {
	k, err := ParseKeys(set(jose.JSONWebKey{Key: key.Public(), KeyID: "a"}))
	if err != nil {
		b.Fatal(err)
	}
	parts := strings.Split(signed(b, alg, key, "a", ordinaryBody), ".")
	junk := parts[0] + "." + part(strings.Replace(ordinaryBody, "ada", "eve", 1)) + "." + parts[2]
	b.Run(name, func(b *testing.B) {
		for b.Loop() {
			if _, err := verify(k, junk, required, now); err == nil {
				b.Fatal("accepted")
			}
		}
	})
}

func FuzzVerify(f *testing.F) {
	k := testKeys(f)
	good := signed(f, jose.ES256, ecKey, "ec", ordinaryBody)
	f.Add(good)
	f.Add(part(`{"alg":"none"}`) + "." + part(ordinaryBody) + ".")
	f.Add("..")
	f.Add(signed(f, jose.ES256, ecKey, "ec", ordinaryBody+"}"))
	f.Add(part(`{"alg":"ES256","ALG":"none"}]`) + "." + part(`{"exp":1,"EXP":2}]`) + ".")
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := verify(k, token, required, now); err == nil {
			if user, _ := c.text("sub"); user != "ada" {
				t.Errorf("%q is %q", token, user)
			}
		}
	})
}

// What weir takes for an object, Go's own parser takes for the same object, and nothing is behind it.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{ordinaryBody, ordinaryBody + "}", ordinaryBody + "]", `{"exp":1,"EXP":2}`, `{"a":1,"a":2}`, `{"a\ud800":1}`, "{\"\xff\":1}", `{"a":{"b":[1]}} `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := members(text, claimNames)
		if err != nil {
			return
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(text, &whole); err != nil || len(whole) != len(all) {
			t.Errorf("%q: %d members, and for encoding/json %d, %v", text, len(all), len(whole), err)
		}
		var folded struct {
			Exp json.RawMessage `json:"exp"`
		}
		json.Unmarshal(text, &folded) // takes the last name that fits in any case
		if string(folded.Exp) != string(all["exp"]) {
			t.Errorf("%q: exp is %s, and for encoding/json %s", text, all["exp"], folded.Exp)
		}
	})
}
