package config

// Included are the files whose content is a part of a document.
type Included struct {
	// Patterns are the paths of files and folders, and patterns, that the file names. They
	// start at the current folder of the process, or are absolute.
	Patterns []string
	Files    []IncludedFile
}

// IncludedFile is one file that was included.
type IncludedFile struct {
	Path   string
	Source [32]byte // the SHA-256 hash of its text
}

// included is the value of the key include. Package file puts the files in the place of the
// key, so nothing is left to read or print.
func included() value {
	return value{
		read: func(v *draft, n *Tree, p path) {
			v.fail(n, p, "works only in the configuration file itself, not in a file that it includes")
		},
		print:  func(*shower) *Tree { return nil },
		schema: func() *schema { return items(&schema{Type: "string", Pattern: `[^$]`}) },
	}
}
