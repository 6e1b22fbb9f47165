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
		user, h, err := parseEntry(entry)
		if err == nil && f.users[user] != nil {
			err = fmt.Errorf("user %q is there twice; remove one of the lines", user)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		f.users[user] = h
		if f.unknown == nil || h.cost() > f.unknown.cost() {
			f.unknown = h
		}
	}
	return f, nil
}

func parseEntry(entry string) (user string, h hash, err error) {
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
	if h, err = parseHash(text); err != nil {
		return "", nil, fmt.Errorf("user %q: %w", user, err)
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
