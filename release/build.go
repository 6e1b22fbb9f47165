package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

// target is a system and an architecture that weir is built for.
type target struct{ os, arch string }

var (
	targets = []target{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}
	linux   = targets[:2] // targets with an image and a Debian package
)

// program is a program of a release.
type program struct{ name, description string }

var (
	weir     = program{"weir", "A TCP, TLS and HTTP reverse proxy"}
	weirSoak = program{"weir-soak", "A load tool that reports anomalies"}
	programs = []program{weir, weirSoak}
)

// binary is a program built for a target.
type binary struct {
	program
	target
	data     []byte
	info     *debug.BuildInfo // the modules that are linked into it
	licences []byte           // the texts of their licences
}

// build identifies a binary.
type build struct {
	program
	target
}

// builder makes the parts of a release from a commit.
type builder struct {
	*source
	out     string
	scratch string
	built   map[build]*binary
	help    []entry // of helpFiles
}

func newBuilder(s *source, out string) (*builder, error) {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "weir-release-")
	return &builder{source: s, out: out, scratch: scratch, built: map[build]*binary{}}, err
}

func (b *builder) close() { os.RemoveAll(b.scratch) }

// goFor returns a command of the Go tool for a target. Settings of the user that would
// change the bytes have no effect.
func (b *builder) goFor(ctx context.Context, t target, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = b.root
	c.Stderr = os.Stderr
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GOEXPERIMENT=") || strings.HasPrefix(v, "GODEBUG=") })
	c.Env = append(c.Env, "GOOS="+t.os, "GOARCH="+t.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0",
		"GOFLAGS=-trimpath", "GOWORK=off", "GOFIPS140=off", "GOTOOLCHAIN=local")
	return c
}

// binary builds a program for a target, once.
func (b *builder) binary(ctx context.Context, p program, t target) (*binary, error) {
	if done := b.built[build{p, t}]; done != nil {
		return done, nil
	}
	file := filepath.Join(b.scratch, p.name+"_"+t.os+"_"+t.arch)
	file, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X main.revision=%s", b.tag(), b.commit)
	if err := b.goFor(ctx, t, "build", "-buildvcs=true", "-ldflags", flags, "-o", file, p.folder()).Run(); err != nil {
		return nil, fmt.Errorf("cannot build %s for %s/%s: %w", p.name, t.os, t.arch, err)
	}
	done := &binary{program: p, target: t}
	if done.data, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	if done.info, err = buildinfo.Read(bytes.NewReader(done.data)); err != nil {
		return nil, fmt.Errorf("cannot read what is linked into %s for %s/%s: %w", p.name, t.os, t.arch, err)
	}
	if done.licences, err = b.licences(ctx, p, t); err != nil {
		return nil, err
	}
	b.built[build{p, t}] = done
	return done, nil
}

// folder is the program's folder in the source.
func (p program) folder() string { return "./cmd/" + p.name }

// licences returns the texts of Go's licence and of those of all modules that are linked
// into a program. They must be distributed with the binary.
func (b *builder) licences(ctx context.Context, p program, t target) ([]byte, error) {
	c := b.goFor(ctx, t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}\t{{$.Dir}}{{end}}{{end}}", p.folder())
	list, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("cannot list what is linked into %s: %w", p.name, err)
	}
	goroot, err := b.goFor(ctx, t, "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("cannot find Go's own licence: %w", err)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s is under the Apache License 2.0. Linked into it are the standard library of Go\nand the modules below, each with its licence.\n", p.name)
	folders := map[string]string{} // -> title
	root := strings.TrimSpace(string(goroot))
	folders[root] = "Go's standard library"
	for line := range strings.Lines(string(list)) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) != 4 {
			continue
		}
		for folder := f[3]; len(folder) >= len(f[2]); folder = filepath.Dir(folder) {
			folders[folder] = f[0] + " " + f[1] + strings.TrimPrefix(folder, f[2])
		}
	}
	titles := map[string]string{}
	for folder, title := range folders {
		titles[title] = folder
	}
	for _, title := range slices.Sorted(maps.Keys(titles)) {
		if err := licencesIn(&out, title, titles[title]); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// licencesIn writes the licence texts in a folder. A folder within a module may have none.
func licencesIn(out *bytes.Buffer, title, folder string) error {
	files, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, f := range files {
		name := strings.ToUpper(f.Name())
		if f.IsDir() || strings.HasSuffix(name, ".GO") || !slices.ContainsFunc([]string{"LICEN", "UNLICEN", "COPYING", "PATENTS", "NOTICE"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n%s\n%s: %s\n\n%s\n", strings.Repeat("=", 79), title, f.Name(), bytes.TrimSpace(text))
	}
	return nil
}

// binaries writes an archive and an SBOM of each program for each target.
func (b *builder) binaries(ctx context.Context) error {
	licence, err := b.read("LICENSE")
	if err != nil {
		return err
	}
	for _, p := range programs {
		for _, t := range targets {
			built, err := b.binary(ctx, p, t)
			if err != nil {
				return err
			}
			if err := b.archive(built, licence); err != nil {
				return err
			}
		}
	}
	return nil
}

// archive writes a binary with its licences, and its SBOM.
func (b *builder) archive(of *binary, licence []byte) error {
	name := fmt.Sprintf("%s_%s_%s_%s", of.name, b.version, of.os, of.arch)
	files := []entry{{name + "/" + of.name, 0o755, of.data}, {name + "/LICENSE", 0o644, licence}, {name + "/LICENSES-OF-MODULES", 0o644, of.licences}}
	archive, err := packed("", files, b.time)
	if err != nil {
		return err
	}
	sbom, err := b.sbom(of)
	if err != nil {
		return err
	}
	if err := b.write(name+".tar.gz", archive); err != nil {
		return err
	}
	return b.write(name+".cdx.json", sbom)
}

func (b *builder) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(b.out, name), data, 0o644)
}

const checksumFile = "SHA256SUMS"

// checksums writes the SHA-256 of each file. For the image and the chart, which are OCI
// layouts, it uses index.json, which contains the digests of all their other files.
func (b *builder) checksums(report io.Writer) error {
	var sums bytes.Buffer
	err := filepath.WalkDir(b.out, func(file string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(b.out, file)
		name = filepath.ToSlash(name)
		if err != nil || d.IsDir() || name == checksumFile || strings.Contains(name, "/") && filepath.Base(name) != "index.json" {
			return err
		}
		data, err := os.ReadFile(file)
		if err == nil {
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(data), name)
		}
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(report, "weir %s, commit %s\n%s", b.tag(), b.commit, sums.Bytes())
	return b.write(checksumFile, sums.Bytes())
}
