package htpasswd

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	stdhash "hash"
	"strconv"
	"strings"

	"golang.org/x/crypto/bcrypt"
)

// Limits of what a check may cost: about a second of a core at most.
const (
	mostBcryptCost = 14
	leastRounds    = 1_000 // by the specification of sha-crypt
	mostRounds     = 500_000
	defaultRounds  = 5_000
)

// parseHash reads a hash in the form that the command htpasswd or crypt(3) writes.
func parseHash(text string) (hash, error) {
	switch {
	case strings.HasPrefix(text, "$2"):
		return parseBcrypt(text)
	case strings.HasPrefix(text, "$5$"):
		return parseSHACrypt(text, "$5$", sha256Crypt)
	case strings.HasPrefix(text, "$6$"):
		return parseSHACrypt(text, "$6$", sha512Crypt)
	case strings.HasPrefix(text, "$apr1$"):
		return parseMD5Crypt(text, "$apr1$")
	case strings.HasPrefix(text, "{SHA}"):
		return parseSHA1(text)
	}
	return nil, fmt.Errorf("the password has no hash that weir knows; write one with \"htpasswd -B\" (bcrypt)")
}

// parseMore also reads hashes that nginx knows, and the command htpasswd does not write.
func parseMore(text string) (hash, error) {
	switch {
	case strings.HasPrefix(text, "{SSHA}"):
		return parseSaltedSHA1(text)
	case strings.HasPrefix(text, "{PLAIN}"):
		return plain(strings.TrimPrefix(text, "{PLAIN}")), nil
	case strings.HasPrefix(text, "$1$"):
		return parseMD5Crypt(text, "$1$")
	}
	return parseHash(text)
}

// plain is a password that is not hashed.
type plain string

func (h plain) matches(password []byte) bool {
	return subtle.ConstantTimeCompare(password, []byte(h)) == 1
}

func (h plain) cost() int { return 1 }

// saltedSHA1 is the digest of a password and a salt, as OpenLDAP writes it.
type saltedSHA1 struct {
	sum  [sha1.Size]byte
	salt string
}

func parseSaltedSHA1(text string) (hash, error) {
	data, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "{SSHA}"))
	if err != nil || len(data) < sha1.Size {
		return nil, fmt.Errorf("the {SSHA} hash is malformed; write a new one with \"htpasswd -B\" (bcrypt)")
	}
	return saltedSHA1{[sha1.Size]byte(data), string(data[sha1.Size:])}, nil
}

func (h saltedSHA1) matches(password []byte) bool {
	sum := sha1.Sum(join(password, []byte(h.salt)))
	return subtle.ConstantTimeCompare(sum[:], h.sum[:]) == 1
}

func (h saltedSHA1) cost() int { return 1 }

type bcryptHash struct {
	text   []byte
	rounds int // log2
}

func parseBcrypt(text string) (hash, error) {
	// htpasswd writes $2y$, which is the same algorithm as $2a$ of package bcrypt.
	text = strings.Replace(text, "$2y$", "$2a$", 1)
	rounds, err := bcrypt.Cost([]byte(text))
	if err != nil || len(text) != 60 {
		return nil, fmt.Errorf("the bcrypt hash is malformed; write a new one with \"htpasswd -B\"")
	}
	if rounds > mostBcryptCost {
		return nil, fmt.Errorf("the bcrypt cost %d is higher than %d, and a check would take too long; write a new hash with \"htpasswd -B -C 10\"", rounds, mostBcryptCost)
	}
	return bcryptHash{[]byte(text), rounds}, nil
}

// matches compares the first 72 bytes: bcrypt uses no more.
func (h bcryptHash) matches(password []byte) bool {
	return bcrypt.CompareHashAndPassword(h.text, password[:min(len(password), 72)]) == nil
}

func (h bcryptHash) cost() int { return 50 << h.rounds }

// sha1Hash is unsalted. It is accepted because many files have it.
type sha1Hash [sha1.Size]byte

func parseSHA1(text string) (hash, error) {
	sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, "{SHA}"))
	if err != nil || len(sum) != sha1.Size {
		return nil, fmt.Errorf("the {SHA} hash is malformed; write a new one with \"htpasswd -B\" (bcrypt)")
	}
	return sha1Hash(sum), nil
}

func (h sha1Hash) matches(password []byte) bool {
	sum := sha1.Sum(password)
	return subtle.ConstantTimeCompare(sum[:], h[:]) == 1
}

func (h sha1Hash) cost() int { return 1 }

// salted is a hash of crypt(3): the text of its digest is compared.
type salted struct {
	digest func(password, salt []byte, rounds int) string
	salt   []byte
	rounds int
	want   string
	micros int // about the time of a check
}

func (h *salted) matches(password []byte) bool {
	return subtle.ConstantTimeCompare([]byte(h.digest(password, h.salt, h.rounds)), []byte(h.want)) == 1
}

func (h *salted) cost() int { return h.micros }

// parseMD5Crypt reads a hash of the MD5 algorithm of crypt(3) ($1$), or of Apache's variant ($apr1$).
func parseMD5Crypt(text, prefix string) (hash, error) {
	salt, sum, found := strings.Cut(strings.TrimPrefix(text, prefix), "$")
	if !found || salt == "" || len(salt) > 8 || len(sum) != 22 || !isCrypt64(sum) {
		return nil, fmt.Errorf("the %s hash is malformed; write a new one with \"htpasswd -B\" (bcrypt)", strings.Trim(prefix, "$"))
	}
	digest := func(password, salt []byte, _ int) string { return md5Crypt(password, salt, prefix) }
	return &salted{digest: digest, salt: []byte(salt), want: sum, micros: 300}, nil
}

// parseSHACrypt reads $5$ or $6$, an optional "rounds=N$", the salt, and the digest.
func parseSHACrypt(text, prefix string, digest func(password, salt []byte, rounds int) string) (hash, error) {
	rest, rounds := strings.TrimPrefix(text, prefix), defaultRounds
	if number, after, found := strings.Cut(strings.TrimPrefix(rest, "rounds="), "$"); strings.HasPrefix(rest, "rounds=") {
		n, err := strconv.Atoi(number)
		if err != nil || !found || n < leastRounds {
			return nil, fmt.Errorf("the number of rounds of the %s hash is malformed; write a new hash with \"htpasswd -B\" (bcrypt)", prefix)
		}
		if n > mostRounds {
			return nil, fmt.Errorf("the %s hash has %d rounds, more than %d, and a check would take too long; write a new hash with fewer rounds", prefix, n, mostRounds)
		}
		rest, rounds = after, n
	}
	salt, sum, found := strings.Cut(rest, "$")
	if !found || len(salt) > 16 || len(sum) != len(digest(nil, nil, 1)) || !isCrypt64(sum) {
		return nil, fmt.Errorf("the %s hash is malformed; write a new one with \"htpasswd -B\" (bcrypt)", prefix)
	}
	return &salted{digest: digest, salt: []byte(salt), rounds: rounds, want: sum, micros: rounds}, nil
}

// crypt64 is the alphabet of crypt(3), in which the least significant six bits come first.
const crypt64 = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func isCrypt64(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(crypt64, r) })
}

// appendCrypt64 appends the n least significant groups of six bits.
func appendCrypt64(b []byte, v uint, n int) []byte {
	for range n {
		b = append(b, crypt64[v&0x3f])
		v >>= 6
	}
	return b
}

// md5Crypt is the MD5 algorithm of crypt(3). It always has 1,000 rounds.
func md5Crypt(password, salt []byte, prefix string) string {
	alternate := md5.Sum(join(password, salt, password))
	h := md5.New()
	h.Write(password)
	h.Write([]byte(prefix))
	h.Write(salt)
	h.Write(repeat(alternate[:], len(password)))
	for n := len(password); n > 0; n >>= 1 {
		if n&1 != 0 {
			h.Write([]byte{0})
		} else {
			h.Write(password[:1])
		}
	}
	sum := h.Sum(nil)
	for i := range 1000 {
		h.Reset()
		stir(h, i, password, salt, sum)
		sum = h.Sum(sum[:0])
	}
	var out []byte
	for i := range 5 {
		last := i + 12
		if i == 4 {
			last = 5
		}
		out = appendCrypt64(out, uint(sum[i])<<16|uint(sum[i+6])<<8|uint(sum[last]), 4)
	}
	return string(appendCrypt64(out, uint(sum[11]), 2))
}

// stir writes what round i hashes.
func stir(h stdhash.Hash, i int, password, salt, sum []byte) {
	first, last := sum, password
	if i&1 != 0 {
		first, last = password, sum
	}
	h.Write(first)
	if i%3 != 0 {
		h.Write(salt)
	}
	if i%7 != 0 {
		h.Write(password)
	}
	h.Write(last)
}

func sha256Crypt(password, salt []byte, rounds int) string {
	sum := shaCrypt(sha256.New, password, salt, rounds)
	var out []byte
	a, b, c := 0, 10, 20
	for range 10 {
		out = appendCrypt64(out, uint(sum[a])<<16|uint(sum[b])<<8|uint(sum[c]), 4)
		a, b, c = c+1, a+1, b+1
	}
	return string(appendCrypt64(out, uint(sum[31])<<8|uint(sum[30]), 3))
}

func sha512Crypt(password, salt []byte, rounds int) string {
	sum := shaCrypt(sha512.New, password, salt, rounds)
	var out []byte
	a, b, c := 0, 21, 42
	for range 21 {
		out = appendCrypt64(out, uint(sum[a])<<16|uint(sum[b])<<8|uint(sum[c]), 4)
		a, b, c = b+1, c+1, a+1
	}
	return string(appendCrypt64(out, uint(sum[63]), 2))
}

// shaCrypt is the algorithm of Ulrich Drepper's specification ("Unix crypt using SHA-256 and
// SHA-512", version 0.6), in which the steps have the numbers in the comments.
func shaCrypt(newHash func() stdhash.Hash, password, salt []byte, rounds int) []byte {
	h := newHash()
	h.Write(join(password, salt, password)) // 4 to 8
	b := h.Sum(nil)
	h.Reset()
	h.Write(join(password, salt, repeat(b, len(password)))) // 1 to 3, 9, 10
	for n := len(password); n > 0; n >>= 1 {                // 11
		if n&1 != 0 {
			h.Write(b)
		} else {
			h.Write(password)
		}
	}
	a := h.Sum(nil) // 12
	h.Reset()
	for range password { // 13 to 16
		h.Write(password)
	}
	p := repeat(h.Sum(nil), len(password))
	h.Reset()
	for range 16 + int(a[0]) { // 17 to 20
		h.Write(salt)
	}
	s := repeat(h.Sum(nil), len(salt))
	for i := range rounds { // 21
		h.Reset()
		stir(h, i, p, s, a)
		a = h.Sum(a[:0])
	}
	return a
}

func join(parts ...[]byte) (all []byte) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// repeat returns the first n bytes of b, b, b ...
func repeat(b []byte, n int) []byte {
	out := make([]byte, 0, n)
	for len(out) < n {
		out = append(out, b[:min(len(b), n-len(out))]...)
	}
	return out
}
