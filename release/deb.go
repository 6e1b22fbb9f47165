package main

import (
	"bytes"
	"context"
	"crypto/md5"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// debs writes a Debian package for each architecture.
func (b *builder) debs(ctx context.Context) error {
	help, err := b.helpFiles(ctx)
	if err != nil {
		return fmt.Errorf("cannot make the manual pages and the completions: %w", err)
	}
	for _, t := range linux {
		built, err := b.binary(ctx, weir, t)
		if err != nil {
			return err
		}
		deb, err := b.deb(built, help)
		if err != nil {
			return fmt.Errorf("cannot make the Debian package for %s: %w", t.arch, err)
		}
		if err := b.write(fmt.Sprintf("weir_%s_%s.deb", debianVersion(b.version), t.arch), deb); err != nil {
			return err
		}
	}
	return nil
}

// debianVersion changes the version so that Debian sorts prereleases before their release.
func debianVersion(v string) string { return strings.Replace(v, "-", "~", 1) }

// deb returns an ar archive with three members, see deb(5).
func (b *builder) deb(weir *binary, help []entry) ([]byte, error) {
	files, err := b.installed(weir)
	if err != nil {
		return nil, err
	}
	files = append(files, help...)
	data, err := packed("./", files, b.time)
	if err != nil {
		return nil, err
	}
	control, err := b.control(weir.arch, files)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	member(&out, "debian-binary", []byte("2.0\n"), b.time)
	member(&out, "control.tar.gz", control, b.time)
	member(&out, "data.tar.gz", data, b.time)
	return out.Bytes(), nil
}

func member(out *bytes.Buffer, name string, data []byte, at time.Time) {
	fmt.Fprintf(out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, at.Unix(), 0, 0, "100644", len(data))
	out.Write(data)
	if len(data)%2 == 1 {
		out.WriteByte('\n')
	}
}

// conffiles are the files that administrators change: their source by their path.
var conffiles = map[string]string{"etc/weir/weir.yaml": "deploy/debian/weir.yaml", "etc/logrotate.d/weir": "deploy/debian/logrotate"}

// installed returns the files that the package installs, without those of helpFiles.
func (b *builder) installed(weir *binary) ([]entry, error) {
	files := []entry{{"usr/bin/weir", 0o755, weir.data}}
	var err error
	add := func(to, from string, change func([]byte) ([]byte, error)) {
		var data []byte
		if err == nil {
			data, err = b.read(from)
		}
		if err == nil && change != nil {
			data, err = change(data)
		}
		files = append(files, entry{to, 0o644, data})
	}
	for _, to := range slices.Sorted(maps.Keys(conffiles)) {
		add(to, conffiles[to], nil)
	}
	add("usr/lib/systemd/system/weir.service", "deploy/systemd/weir.service", packagedUnit)
	add("usr/share/doc/weir/changelog.gz", "CHANGELOG.md", compress)
	add("usr/share/doc/weir/copyright", "LICENSE", func(licence []byte) ([]byte, error) {
		return fmt.Appendf(nil, "weir: %s\n\n%s\n%s", home, licence, weir.licences), nil
	})
	for _, name := range b.files {
		if below, ok := strings.CutPrefix(name, "examples/"); ok && path.Ext(name) == ".yaml" {
			add("usr/share/doc/weir/examples/"+below, name, nil)
		}
	}
	return files, err
}

// packagedUnit returns the unit without the instructions to copy it, and with the paths of
// the package.
func packagedUnit(unit []byte) ([]byte, error) {
	_, rest, ok := strings.Cut(string(unit), "\n#\n")
	if !ok || strings.Count(rest, "/usr/local/bin/weir") != 1 {
		return nil, fmt.Errorf("deploy/systemd/weir.service has to begin with a paragraph on how to copy it, and to name /usr/local/bin/weir once after that")
	}
	return []byte(strings.Replace(rest, "/usr/local/bin/weir", "/usr/bin/weir", 1)), nil
}

// control returns the archive that dpkg reads before and after it unpacks the files.
func (b *builder) control(arch string, files []entry) ([]byte, error) {
	var sums, changed strings.Builder
	size := 0
	for _, f := range files {
		size += (len(f.data) + 1023) / 1024
		if conffiles[f.name] != "" {
			fmt.Fprintf(&changed, "/%s\n", f.name)
		} else {
			fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(f.data), f.name)
		}
	}
	text := fmt.Sprintf(`Package: weir
Version: %s
Architecture: %s
Maintainer: The weir authors <weirproxy@users.noreply.github.com>
Installed-Size: %d
Recommends: ca-certificates
Section: net
Priority: optional
Homepage: %s
Description: TCP, TLS and HTTP reverse proxy that keeps the client's address
 weir reads the PROXY protocol strictly, terminates TLS, and routes by SNI,
 host or raw TCP. It reports the health of its node to the load balancer.
 .
 The service is hardened, and is not started before it is configured.
`, debianVersion(b.version), arch, size, home)
	all := []entry{{"control", 0o644, []byte(text)}, {"md5sums", 0o644, []byte(sums.String())}, {"conffiles", 0o644, []byte(changed.String())}}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		data, err := b.read("deploy/debian/" + script)
		if err != nil {
			return nil, err
		}
		all = append(all, entry{script, 0o755, data})
	}
	return packed("./", all, b.time)
}
