package weir_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// licences are the licences that may be linked into a binary under the Apache License 2.0,
// each by a sentence that only it contains. All of them demand no more than that their text
// is distributed with the binary.
var licences = map[string]string{
	"Apache-2.0":   "apache license version 2.0, january 2004",
	"BSD":          "redistribution and use in source and binary forms, with or without modification, are permitted provided that the following conditions are met",
	"MIT":          "permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files",
	"ISC":          "permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted",
	"ISC, older":   "permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted",
	"CC0-1.0":      "cc0 1.0 universal",
	"Unlicense":    "this is free and unencumbered software released into the public domain",
	"zlib":         "this software is provided 'as-is', without any express or implied warranty. in no event will the authors be held liable",
	"Go's patents": "additional ip rights grant (patents)", // distributed with Go's BSD licence
}

// conditions are words of licences that demand more. A text with one of them is refused,
// even if it also contains a licence from above.
var conditions = []string{
	"general public license", // GPL, LGPL, AGPL
	"mozilla public license",
	"eclipse public license",
	"common development and distribution license",
	"server side public license",
	"business source license",
	"commons clause",
	"all advertising materials mentioning", // BSD with four clauses
	"noncommercial", "non-commercial",
}

// licenceOf names the licences in a text. It returns an error for a text without a known
// licence that is compatible with Apache-2.0, and for a text with words of other licences.
func licenceOf(text string) (names []string, err error) {
	// Line ends, indentation, comment marks and quotation marks differ between copies.
	words := strings.Fields(strings.NewReplacer("`", "'", "‘", "'", "’", "'", "*", " ").Replace(strings.ToLower(text)))
	text = strings.Join(words, " ")
	for name, sentence := range licences {
		if strings.Contains(text, sentence) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil, errors.New("no licence in it is known to be compatible with Apache-2.0; a lawyer's answer goes into licence_test.go")
	}
	for _, words := range conditions {
		if strings.Contains(text, words) {
			return names, fmt.Errorf("it has the words %q, which no licence compatible with Apache-2.0 has", words)
		}
	}
	return names, nil
}

// Every module and folder that is linked into weir has a compatible licence. A module has one at its root. A
// folder above a linked package may have its own licence.
func TestLicencesOfLinkedModules(t *testing.T) {
	// go test caches results by the files that the test itself reads; it does not notice
	// what "go list" reads.
	if _, err := source(); err != nil {
		t.Fatal(err)
	}
	read(t, "go.mod")
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Dir}}\t{{$.Dir}}{{end}}", "./cmd/weir")
	list.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("cannot list what is linked into weir: %v", err)
	}

	looked, found := map[string]bool{}, map[string][]string{} // folders; licences by module
	for line := range strings.Lines(string(out)) {
		parts := strings.Split(strings.TrimSpace(line), "\t")
		if len(parts) != 3 {
			continue // the standard library has no module
		}
		module, root, folder := parts[0], parts[1], parts[2]
		found[module] = append(found[module], licencesIn(t, root, looked)...)
		for ; len(folder) > len(root); folder = filepath.Dir(folder) {
			licencesIn(t, folder, looked)
		}
	}
	if len(found) < 10 {
		t.Errorf("only %d modules are linked into weir", len(found))
	}
	for module, names := range found {
		if len(names) == 0 {
			t.Errorf("the module %s has no file LICENSE", module)
		}
		t.Logf("%-50s %s", module, strings.Join(names, ", "))
	}
}

// licencesIn names the licences in the files of a folder; none if the folder was read before.
func licencesIn(t *testing.T, folder string, looked map[string]bool) (all []string) {
	t.Helper()
	if looked[folder] {
		return nil
	}
	looked[folder] = true
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := strings.ToUpper(f.Name())
		if f.IsDir() || strings.HasSuffix(name, ".GO") || !slices.ContainsFunc([]string{"LICEN", "UNLICEN", "COPYING", "PATENTS"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		path := filepath.Join(folder, f.Name())
		names, err := licenceOf(read(t, path))
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		all = append(all, names...)
	}
	return all
}

func TestLicenceOf(t *testing.T) {
	const mit = "Permission is hereby granted, free of charge, to any person obtaining a copy\nof this software and associated\n  documentation files (the \"Software\")"
	for _, one := range []struct {
		text string
		want string // empty: an error is expected
	}{
		{mit, "MIT"},
		{"                 Apache License\n   Version 2.0, January 2004\n", "Apache-2.0"},
		{"Apache License\nVersion 2.0, January 2004\n\n“Commons Clause” License Condition v1.0", ""},
		{"GNU LESSER GENERAL PUBLIC LICENSE\nVersion 3", ""},
		{mit + "\n\nor, at your option, the Mozilla Public License", ""},
		{"Copyright: ask me", ""},
		{"", ""},
	} {
		names, err := licenceOf(one.text)
		if got := strings.Join(names, ", "); (err != nil) != (one.want == "") || err == nil && got != one.want {
			t.Errorf("%q: %q, %v; want %q", one.text, got, err, one.want)
		}
	}
}
