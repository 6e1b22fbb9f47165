package config

// These are the internals that the tests in package config_test use. Those tests are in a separate package,
// because they read configurations with package file, which imports this one.

import (
	"maps"
	"slices"
)

const (
	LetsEncryptStaging = letsEncryptStaging
)

var (
	OIDDelta        = oidDelta
	OIDDistribution = oidDistribution
	OIDEntryIssuer  = oidEntryIssuer
	ParseSize       = parseSize
	Nearest         = nearest
	SecureSuites    = secureSuites
)

// PrintAll prints a configuration with its secrets.
func PrintAll(c *Config) *Tree { return c.print(&shower{reveal: revealAll}) }

// CarriesHTTP2 reports whether the versions and suites of t can carry HTTP/2.
func CarriesHTTP2(t *BackendTLS) bool { return t.offer().carriesHTTP2() }

// KnownKeys returns the keys that weir looks for while it reads a document, in the form
// listeners.NAME.address, and the errors.
func KnownKeys(doc Document) (keys []string, errs Errors) {
	d := newDecoder(doc)
	d.known = map[string][]string{}
	v := draft{decoder: d}
	v.decode(doc.Root)
	for section, names := range d.known {
		for _, name := range names {
			keys = append(keys, Key(section, name))
		}
	}
	return keys, d.errs
}

// Key is the key with this name in a section, in the form listeners.NAME.address.
func Key(section, name string) string {
	within := path{step: section}
	full := within.key(name)
	return full.pattern()
}

// Synonyms returns the keys to which words of other programs lead, by section.
func Synonyms() map[string]map[string]string {
	all := map[string]map[string]string{}
	for pattern, words := range synonyms {
		all[pattern] = map[string]string{}
		for word, s := range words {
			all[pattern][word] = s.key
		}
	}
	return all
}

// Absent has the words for what weir does not do.
func Absent() map[string]string { return absent }

// PatternsWithExample returns the patterns of the keys that have an example.
func PatternsWithExample() []string { return slices.Collect(maps.Keys(examples)) }
