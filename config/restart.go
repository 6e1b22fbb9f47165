package config

import (
	"slices"
	"strings"
)

// RestartKeys are the keys, such as log.format, that a reload cannot change.
func RestartKeys() []string { return newRoot().section().restartKeys("") }

// restartKeys returns the keys within s. They are in sections that exist once.
func (s section) restartKeys(within string) (keys []string) {
	for i := range s.keys {
		k := &s.keys[i]
		if k.value.restart {
			keys = append(keys, within+k.name)
		}
		if k.value.inner != nil {
			keys = append(keys, k.value.inner().restartKeys(within+k.name+".")...)
		}
	}
	return keys
}

// ChangedByRestart returns those of the RestartKeys in which two configurations differ.
func ChangedByRestart(old, new *Config) (keys []string) {
	before, after := old.rootWithoutRoutes().section(), new.rootWithoutRoutes().section()
	for _, key := range RestartKeys() {
		if !slices.Equal(before.at(key).appendTo(nil), after.at(key).appendTo(nil)) {
			keys = append(keys, key)
		}
	}
	return keys
}

// at prints the value of a key within sections, such as log.format; an empty text if there
// is none. It does not print the whole configuration, which may have thousands of routes.
func (s section) at(path string) *Tree {
	name, _, _ := strings.Cut(path, ".")
	top := &Tree{Shape: ShapeMapping}
	if i := slices.Index(s.names(), name); i >= 0 {
		if v := s.print1(i, &shower{}); v != nil {
			top.put(name, v)
		}
	}
	return top.at(path)
}

// at is the value of a key within a printed section.
func (t *Tree) at(path string) *Tree {
	name, rest, deeper := strings.Cut(path, ".")
	for i := 0; i+1 < len(t.Parts); i += 2 {
		switch {
		case t.Parts[i].Text != name:
		case deeper:
			return t.Parts[i+1].at(rest)
		default:
			return t.Parts[i+1]
		}
	}
	return textTree("")
}
