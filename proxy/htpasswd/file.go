// Package htpasswd reads files of user names and password hashes, as the command htpasswd writes
// them, and checks passwords.
package htpasswd

import (
	"bytes"
	"fmt"
	"strings"
)

// File is the users of a file. It is immutable.
type File struct {
	users map[string]hash
	// unknown is checked for users that are not in the file. So the time of a check does not
	// tell whether a user exists.
	unknown hash
}

// hash is the hash of a password.
type hash interface {
	// matches reports whether password has this hash.
	matches(password []byte) bool
	// cost is comparable between hashes: about the time of a check, in microseconds.
	cost() int
}

// mostUser limits user names, in bytes. A password beyond mostPassword never matches.
const mostUser, mostPassword = 255, 1024

// Parse reads a file: one "user:hash" for each line. Empty lines, and lines that begin with #, do
// not count. A hash is bcrypt, sha256-crypt, sha512-crypt, apr1 or {SHA}. The error names the
// line.
func Parse(text []byte) (*File, error) {
	f := &File{users: map[string]hash{}}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		entry := strings.TrimRight(string(line), "\r\n")
		if strings.TrimSpace(entry) == "" || strings.HasPrefix(entry, "#") {
			continue
		}
		user, h, err := parseEntry(entry, parseHash)
		if err == nil && f.users[user] != nil {
			err = fmt.Errorf("user %q is there twice; remove one of the lines", user)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		f.add(user, h)
	}
	return f, nil
}

// ParseSome reads the entries that weir can check, as nginx would: of several entries of a user the
// first one counts, and what follows a second colon has no meaning. Besides the hashes of Parse,
// it knows {SSHA}, {PLAIN} and $1$. It returns an error for each line that it leaves out: its
// user cannot log in.
func ParseSome(text []byte) (f *File, errs []error) {
	f = &File{users: map[string]hash{}}
	number := 0
	for line := range bytes.Lines(text) {
		number++
		entry := strings.TrimRight(string(line), "\r\n")
		if strings.TrimSpace(entry) == "" || strings.HasPrefix(entry, "#") {
			continue
		}
		if parts := strings.SplitN(entry, ":", 3); len(parts) == 3 {
			entry = parts[0] + ":" + parts[1]
		}
		user, h, err := parseEntry(entry, parseMore)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", number, err))
		}
		if _, known := f.users[user]; known || user == "" {
			continue
		}
		if h == nil {
			h = none{} // a later entry of the user must not count
		}
		f.add(user, h)
	}
	return f, errs
}

// IsHash reports whether ParseSome can check a password against the text.
func IsHash(text string) bool {
	text = strings.TrimSpace(text)
	if len(text) > mostHash || strings.ContainsAny(text, "\r\n:") {
		return false
	}
	_, err := parseMore(text)
	return err == nil
}

// mostHash is longer than every hash, in bytes.
const mostHash = 1024

// none is the hash of no password.
type none struct{}

func (none) matches([]byte) bool { return false }
func (none) cost() int           { return 0 }

func (f *File) add(user string, h hash) {
	f.users[user] = h
	if f.unknown == nil || h.cost() > f.unknown.cost() {
		f.unknown = h
	}
}

func parseEntry(entry string, parse func(string) (hash, error)) (user string, h hash, err error) {
	user, text, found := strings.Cut(entry, ":")
	switch {
	case !found:
		return "", nil, fmt.Errorf("there is no colon; write user:hash, as the command htpasswd does")
	case user == "":
		return "", nil, fmt.Errorf("the name of the user is missing before the colon")
	case len(user) > mostUser:
		return "", nil, fmt.Errorf("the name of the user is longer than %d bytes", mostUser)
	case strings.ContainsFunc(user, isControl):
		return "", nil, fmt.Errorf("the name of user %q contains a control character; remove it", user)
	}
	if h, err = parse(text); err != nil {
		return user, nil, fmt.Errorf("user %q: %w", user, err)
	}
	return user, h, nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// Users returns the number of users.
func (f *File) Users() int { return len(f.users) }

// Check reports whether the file has this user with this password. It computes one hash, which
// may take many milliseconds.
func (f *File) Check(user, password []byte) bool {
	h, known := f.users[string(user)]
	if !known {
		h = f.unknown
	}
	if h == nil || len(password) > mostPassword {
		return false
	}
	return h.matches(password) && known
}
