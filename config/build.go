package config

import "path/filepath"

// InUse reports which files the process already uses. Without functions: none. A file that
// is in use and that weir cannot use now is only a warning. So an unrelated broken file does
// not block a valid change of the configuration.
type InUse struct {
	// Pair returns the names that weir serves with a certificate and key from two files.
	Pair func(cert, key string) (names []string, ok bool)
	// CRL returns true if revocation lists from a file are in use.
	CRL func(file string) bool
	// Auth returns true if users or keys from a file are in use.
	Auth func(file string) bool
}

// Build makes a configuration from a document: it fills in the defaults, validates it, and
// reads the files that it names. env looks up a name in the environment, as os.LookupEnv
// does; it may be nil. The error is an Errors with all errors of the document. The warnings
// are returned even if there are errors.
func Build(doc Document, env func(string) (string, bool), inUse InUse) (*Config, Errors, error) {
	d := newDecoder(doc)
	v := draft{decoder: d, env: env, names: map[string]bool{}, inFile: map[*Certificate]keyed{}, inUse: inUse}
	v.decode(doc.Root)
	v.validate()
	hash := ""
	if len(d.errs) == 0 {
		hash = v.config().hash() // before file paths are made absolute
	}
	v.files(filepath.Dir(doc.Name))
	if !v.unread {
		v.routeHosts()
		v.checkKeys()
	}
	v.warn()
	warnings := d.warns.Sorted()
	if len(d.errs) > 0 {
		return nil, warnings, d.errs.Sorted()
	}
	c := v.config()
	c.Hash, c.Warnings, c.Source, c.Included = hash, warnings, doc.Source, doc.Included
	c.deriveAuth()
	return c, warnings, nil
}
