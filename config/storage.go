package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// storage is a directory or a URL. Only its password is a secret.
func storage(dst *Secret) value {
	x := secret(dst, parseStorage, "")
	x.print = func(s *shower) *Tree { return textUnlessEmpty(s.storage(*dst)) }
	x.schema = func() *schema {
		folder := anyText()
		folder.Not = &schema{Pattern: "^~|://|" + hostPortPattern}
		url := textLike("a directory, or the URL of a Redis or of Secrets", redisPattern+"|"+secretsPattern, nil)
		url.AnyOf[0].Not = &schema{Pattern: `://[^:@/?]*:\(hidden\)@`}
		return anyOf(folder, url)
	}
	return x
}

// Patterns of the URLs of storages. A text with a percent sign in its parameters may be any
// text.
const (
	redisPattern = `[Rr][Ee][Dd][Ii][Ss][Ss]?://(([A-Za-z0-9._:~!&'()*+,;=@-]|%[0-9A-Fa-f]{2})*@)?` +
		`([^/?#@:\[\]]+|\[[^\]]+\])(:(0*` + portPattern + `)?)?(/[0-9%]*)?(\?(&*prefix=[^&#]+&*)?|\?[^#]*%[^#]*)?`
	secretsPattern = `[Ss][Ee][Cc][Rr][Ee][Tt][Ss]://` + labelPattern + `/*` +
		`(\?(&*(prefix=[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?|kubeconfig=[^&#]+)&*)*|\?[^#]*%[^#]*)?#?`
)

// hostPortPattern matches the address of a server, such as 127.0.0.1:6379 or redis:6379/0, where a
// directory may be.
const hostPortPattern = `^([^/@]*@)?([^/:@\[\]]+|\[[^/\]]+\]):0*` + portPattern + `(/[0-9]*)?$`

var likeHostPort = regexp.MustCompile(hostPortPattern)

// parseStorage checks a directory, or the URL of a Redis or of a namespace. Its errors do
// not quote the text, because it may contain a password.
func parseStorage(s string) (string, error) {
	if !isURL(s) {
		if strings.HasPrefix(s, "~") {
			return "", errors.New("begins with ~, which only shells replace; write ${HOME}")
		}
		if likeHostPort.MatchString(s) {
			return "", fmt.Errorf("is the address of a server, and not a directory; write redis://%s for a Redis, and ./ before the name of a directory", shownAddress(s))
		}
		return s, nil
	}
	wrong := func(why string) (string, error) {
		return "", errors.New(why + " (the URL is not shown); write a directory, or one such as redis://user:password@redis.example.org:6379/0?prefix=weir")
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return wrong("is not a URL; percent-encode special characters in the password")
	case u.Scheme == secretsScheme:
		return parseSecrets(s, u)
	case u.Scheme != "redis" && u.Scheme != "rediss":
		return wrong("is neither a directory nor a redis://, rediss:// or secrets:// URL")
	case u.Hostname() == "" || u.Fragment != "" || strings.Contains(s, "#"):
		return wrong("is not the URL of a Redis")
	}
	if password, _ := u.User.Password(); password == Placeholder {
		return "", errors.New("has " + Placeholder + " where a password belongs; write the password itself, such as ${NAME} for one from the environment")
	}
	if port := u.Port(); port != "" {
		if v, err := strconv.ParseUint(port, 10, 16); err != nil || v == 0 {
			return wrong("has an invalid port")
		}
	}
	if db := strings.TrimPrefix(u.Path, "/"); db != "" {
		if v, err := strconv.ParseUint(db, 10, 16); err != nil || strconv.FormatUint(v, 10) != db {
			return wrong("has a path that is not a database number")
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return wrong("has a query that cannot be read")
	}
	for key, values := range query {
		if key != "prefix" || len(values) != 1 || values[0] == "" {
			return wrong("has a parameter other than one prefix")
		}
	}
	return s, nil
}

// shownAddress is the address of a server for an error, without the user and password in front of it.
func shownAddress(s string) string {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		return Placeholder + s[at:]
	}
	return s
}

// secretsScheme is the scheme of URLs of a storage in the Secrets of a cluster.
const secretsScheme = "secrets"

// parseSecrets checks secrets://NAMESPACE with its parameters: prefix, the beginning of
// the names of objects, and kubeconfig.
func parseSecrets(s string, u *url.URL) (string, error) {
	wrong := func(why string) (string, error) {
		return "", errors.New(why + "; write the namespace, such as secrets://weir or secrets://weir?prefix=edge")
	}
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case !isDNSLabel(u.Host):
		return wrong("names no namespace")
	case u.User != nil || strings.Trim(u.Path, "/") != "" || u.Fragment != "" || err != nil:
		return wrong("has more than a namespace, a prefix and a kubeconfig")
	}
	for key, values := range query {
		switch {
		case key != "prefix" && key != "kubeconfig" || len(values) != 1 || values[0] == "":
			return wrong("has a parameter other than one prefix and one kubeconfig")
		case key == "prefix" && (!isDNSLabel(values[0]) || len(values[0]) > 40):
			return wrong("has a prefix that names of Kubernetes objects cannot begin with: use at most 40 lower-case letters, digits and dashes")
		}
	}
	return s, nil
}

// reach completes the URL of a storage in Secrets: it uses the API server of the section
// kubernetes, unless the URL names another.
func (v *draft) reach(storage string, folder string) string {
	u, err := url.Parse(storage)
	if err != nil || u.Scheme != secretsScheme {
		return storage
	}
	query := u.Query()
	file := query.Get("kubeconfig")
	if file == "" && v.kubernetes != nil {
		file = v.kubernetes.Kubeconfig
	}
	if file == "" {
		return storage
	}
	if !filepath.IsAbs(file) {
		file = filepath.Join(folder, file)
	}
	query.Set("kubeconfig", file)
	u.RawQuery = query.Encode()
	return u.String()
}

func isURL(storage string) bool { return strings.Contains(storage, "://") }

// split splits the URL of a storage. user includes the password, and is empty if there is
// none; rest begins with the host. ok is false for a path.
func (s Secret) split() (scheme, user, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(string(s), "://")
	end := len(rest)
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		end = i
	}
	if at := strings.LastIndexByte(rest[:end], '@'); at >= 0 {
		user, rest = rest[:at], rest[at+1:]
	}
	return scheme, user, rest, ok
}

// withoutPassword returns a storage for output.
func (s Secret) withoutPassword() string {
	scheme, user, rest, ok := s.split()
	name, _, secret := strings.Cut(user, ":")
	if !ok || !secret {
		return string(s)
	}
	return scheme + "://" + name + ":" + Placeholder + "@" + rest
}

// withoutUser returns a storage without the user and password in its URL.
func (s Secret) withoutUser() string {
	scheme, _, rest, ok := s.split()
	if !ok {
		return string(s)
	}
	return scheme + "://" + rest
}

// isOpenToNetwork reports whether weir reaches a storage over a network without TLS.
func (s Secret) isOpenToNetwork() bool {
	u, err := url.Parse(string(s))
	return err == nil && u.Scheme == "redis" && !isLoopbackHost(u.Hostname())
}

// absolute makes the path of a directory start at folder. URLs stay unchanged, except
// that URLs of Secrets get the kubeconfig of the cluster.
func (v *draft) absolute(storage *Secret, folder string) {
	if *storage == "" || isURL(string(*storage)) {
		*storage = Secret(v.reach(string(*storage), folder))
		return
	}
	dir := string(*storage)
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(folder, dir)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		v.failAt(v.places[storage], "weir cannot find out its working directory: %v; write an absolute path", err)
		return
	}
	*storage = Secret(dir)
}

// storageFor is the storage of ACME entries that name none: the storage of the top level,
// else the directory that systemd gives a unit with StateDirectory=, else the user's
// folder for data. It is "" if there is none of these.
func (v *draft) storageFor() Secret {
	if v.shared != "" {
		return v.shared
	}
	for _, place := range []struct{ name, below string }{
		{"STATE_DIRECTORY", ""},
		{"XDG_DATA_HOME", "weir/acme"},
		{"HOME", ".local/share/weir/acme"},
	} {
		if v.env == nil {
			break
		}
		dir, _ := v.env(place.name)
		dir, _, _ = strings.Cut(dir, ":") // systemd may list several directories
		if filepath.IsAbs(dir) {
			return Secret(filepath.Join(dir, place.below))
		}
	}
	return ""
}
