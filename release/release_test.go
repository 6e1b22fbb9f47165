package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/crane"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const testVersion = "0.1.0-dev.20261122190000.g0123456789ab"

// newTestBuilder uses a few bytes instead of weir, which takes minutes to build, with the
// build information of this test.
func newTestBuilder(t *testing.T) *builder {
	t.Helper()
	s := &source{root: "..", version: testVersion, commit: "0123456789abcdef0123456789abcdef01234567", time: time.Unix(1795374000, 0).UTC()}
	files, err := s.git(t.Context(), "ls-files")
	if err != nil {
		t.Fatal(err)
	}
	s.files = strings.Split(files, "\n")
	b, err := newBuilder(s, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("this test does not know what is linked into it")
	}
	for _, p := range programs {
		for _, target := range targets {
			b.built[build{p, target}] = &binary{program: p, target: target, data: []byte(p.name + target.os + target.arch), info: info, licences: []byte("licences\n")}
		}
	}
	b.help = []entry{{"usr/share/man/man1/weir.1.gz", 0o644, []byte("manual")}}
	return b
}

// all builds every part, and returns the checksums.
func (b *builder) all(t *testing.T) string {
	t.Helper()
	for _, p := range parts {
		if err := p.build(b, t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.checksums(io.Discard); err != nil {
		t.Fatal(err)
	}
	return string(b.wrote(t, checksumFile))
}

func (b *builder) wrote(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.out, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The same commit gives the same bytes, and SHA256SUMS lists all files.
func TestReproducible(t *testing.T) {
	t.Parallel()
	first, second := newTestBuilder(t), newTestBuilder(t)
	a, b := first.all(t), second.all(t)
	if a != b {
		t.Errorf("the same commit gives\n%s\nand\n%s", a, b)
	}
	var names []string
	for line := range strings.Lines(a) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		names = append(names, strings.ReplaceAll(name, testVersion, "V"))
	}
	want := []string{"chart/index.json", "image/index.json", "weir-V.tgz",
		"weir-soak_V_darwin_amd64.cdx.json", "weir-soak_V_darwin_amd64.tar.gz", "weir-soak_V_darwin_arm64.cdx.json", "weir-soak_V_darwin_arm64.tar.gz",
		"weir-soak_V_linux_amd64.cdx.json", "weir-soak_V_linux_amd64.tar.gz", "weir-soak_V_linux_arm64.cdx.json", "weir-soak_V_linux_arm64.tar.gz",
		"weir_V_darwin_amd64.cdx.json", "weir_V_darwin_amd64.tar.gz", "weir_V_darwin_arm64.cdx.json", "weir_V_darwin_arm64.tar.gz",
		"weir_V_linux_amd64.cdx.json", "weir_V_linux_amd64.tar.gz", "weir_V_linux_arm64.cdx.json", "weir_V_linux_arm64.tar.gz",
		"weir_0.1.0~dev.20261122190000.g0123456789ab_amd64.deb", "weir_0.1.0~dev.20261122190000.g0123456789ab_arm64.deb"}
	if !slices.Equal(names, want) {
		t.Errorf("a release consists of %q, want %q", names, want)
	}
}

// unpacked returns the files of an archive. All of them belong to root and have the
// commit's time.
func (b *builder) unpacked(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		want := int64(0o644)
		if h.Typeflag == tar.TypeDir || strings.HasSuffix(h.Name, "/weir") && !strings.HasPrefix(h.Name, "./etc/") || strings.HasSuffix(h.Name, "/weir-soak") || slices.Contains([]string{"./postinst", "./prerm", "./postrm"}, h.Name) {
			want = 0o755
		}
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(b.time) || h.Mode != want {
			t.Errorf("%s is of %d:%d, %v, with the mode %o", h.Name, h.Uid, h.Gid, h.ModTime, h.Mode)
		}
		if h.Typeflag == tar.TypeReg {
			data, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = string(data)
		}
	}
}

func namesOf(files map[string]string) (names []string) {
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Each archive contains one program and its licences. The SBOM with the same name describes that program.
func TestArchives(t *testing.T) {
	t.Parallel()
	b := newTestBuilder(t)
	if err := b.binaries(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		name := p.name + "_" + testVersion + "_linux_arm64"
		files := b.unpacked(t, unzipped(t, b.wrote(t, name+".tar.gz")))
		if got := namesOf(files); !slices.Equal(got, []string{name + "/LICENSE", name + "/LICENSES-OF-MODULES", name + "/" + p.name}) || files[name+"/"+p.name] != p.name+"linuxarm64" {
			t.Errorf("the archive of %s has %q", p.name, got)
		}
		var bom cdx.BOM
		if err := cdx.NewBOMDecoder(bytes.NewReader(b.wrote(t, name+".cdx.json")), cdx.BOMFileFormatJSON).Decode(&bom); err != nil || bom.Metadata.Component.Name != p.name {
			t.Errorf("the SBOM of %s is of %+v, %v", p.name, bom.Metadata, err)
		}
		if _, err := os.Stat(filepath.Join(b.root, p.folder(), "main.go")); err != nil {
			t.Error(err)
		}
	}
}

// The image is an index of images for two architectures, which do not run as root.
func TestImage(t *testing.T) {
	t.Parallel()
	b := newTestBuilder(t)
	if err := b.image(t.Context()); err != nil {
		t.Fatal(err)
	}
	outer, err := layout.ImageIndexFromPath(filepath.Join(b.out, "image"))
	if err != nil {
		t.Fatal(err)
	}
	m, err := outer.IndexManifest()
	if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != testVersion {
		t.Fatalf("the layout has %v, %v", m, err)
	}
	index, err := outer.ImageIndex(m.Manifests[0].Digest)
	if err == nil {
		err = validate.Index(index)
	}
	if err != nil {
		t.Fatal(err)
	}
	if m, err = index.IndexManifest(); err != nil || len(m.Manifests) != 2 || m.Manifests[0].Platform.String() != "linux/amd64" || m.Manifests[1].Platform.String() != "linux/arm64" {
		t.Fatalf("the index has %v, %v", m.Manifests, err)
	}
	for _, one := range m.Manifests {
		image, err := index.Image(one.Digest)
		if err != nil {
			t.Fatal(err)
		}
		b.checkImage(t, image, one.Platform.Architecture)
	}
}

func (b *builder) checkImage(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	labels := config.Config.Labels
	if config.Architecture != arch || config.OS != "linux" || config.Config.User != "65532:65532" || !config.Created.Time.Equal(b.time) ||
		strings.Join(config.Config.Entrypoint, " ") != "/usr/bin/weir" || strings.Join(config.Config.Cmd, " ") != "run -c /etc/weir/weir.yaml" {
		t.Errorf("the image has the configuration %+v", config)
	}
	if labels["org.opencontainers.image.version"] != testVersion || labels["org.opencontainers.image.revision"] != b.commit || labels["org.opencontainers.image.licenses"] != "Apache-2.0" ||
		labels["org.opencontainers.image.source"] == "" || labels["org.opencontainers.image.created"] != "2026-11-22T19:00:00Z" {
		t.Errorf("the image has the labels %v", labels)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for name, data := range b.unpacked(t, r) {
			files[name] = data
		}
		r.Close()
	}
	if got := namesOf(files); !slices.Equal(got, []string{"etc/ssl/certs/ca-certificates.crt", "usr/bin/weir", "usr/share/doc/weir/LICENSE", "usr/share/doc/weir/LICENSES-OF-MODULES"}) {
		t.Errorf("the image consists of %q", got)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(files["etc/ssl/certs/ca-certificates.crt"])) || strings.Count(files["etc/ssl/certs/ca-certificates.crt"], "BEGIN CERTIFICATE") < 80 {
		t.Error("the image has too few CA certificates")
	}
}

// The chart has the version of the release, and its OCI layout is as helm expects it.
func TestChart(t *testing.T) {
	t.Parallel()
	b := newTestBuilder(t)
	if err := b.chart(t.Context()); err != nil {
		t.Fatal(err)
	}
	packed := b.wrote(t, "weir-"+testVersion+".tgz")
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files := b.unpacked(t, r)
	for _, name := range []string{"weir/values.yaml", "weir/values.schema.json", "weir/templates/workload.yaml", "weir/dashboards/weir.json"} {
		if files[name] == "" {
			t.Errorf("the chart has no %s, but %q", name, namesOf(files))
		}
	}
	if v, err := versionOf([]byte(files["weir/Chart.yaml"])); v != testVersion || err != nil {
		t.Errorf("the chart has the version %q, %v", v, err)
	}

	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	var report strings.Builder
	if err := push(t.Context(), filepath.Join(b.out, "chart"), host+"/charts/weir", &report); err != nil {
		t.Fatal(err)
	}
	text, err := crane.Manifest(host + "/charts/weir:" + testVersion)
	if err != nil {
		t.Fatal(err)
	}
	var m v1.Manifest
	if err := json.Unmarshal(text, &m); err != nil || m.Config.MediaType != chartConfig || len(m.Layers) != 1 || m.Layers[0].MediaType != chartContent {
		t.Errorf("the registry has the manifest %s, %v", text, err)
	}
	if got, err := crane.PullLayer(host + "/charts/weir@" + m.Layers[0].Digest.String()); err != nil {
		t.Error(err)
	} else if size, err := got.Size(); size != int64(len(packed)) || err != nil {
		t.Errorf("the registry has a chart of %d bytes, %v; want %d", size, err, len(packed))
	}
	if digest, err := crane.Digest(host + "/charts/weir:" + testVersion); err != nil || report.String() != host+"/charts/weir:"+testVersion+"@"+digest+"\n" {
		t.Errorf("%q was reported, and the digest is %s, %v", report.String(), digest, err)
	}
}

// The package contains a unit with the path of the packaged binary, keeps a changed
// configuration, and does not start weir.
func TestDeb(t *testing.T) {
	t.Parallel()
	b := newTestBuilder(t)
	if err := b.debs(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.out, "weir_"+debianVersion(testVersion)+"_arm64.deb")
	members := membersOf(t, file)
	if got := strings.Join(members.names, " "); got != "debian-binary control.tar.gz data.tar.gz" {
		t.Errorf("the package consists of %s", got)
	}
	control, data := b.unpacked(t, unzipped(t, members.data["control.tar.gz"])), b.unpacked(t, unzipped(t, members.data["data.tar.gz"]))
	if got := namesOf(control); !slices.Equal(got, []string{"./conffiles", "./control", "./md5sums", "./postinst", "./postrm", "./prerm"}) {
		t.Errorf("control has %q", got)
	}
	for _, line := range []string{"Package: weir", "Version: 0.1.0~dev.20261122190000.g0123456789ab", "Architecture: arm64"} {
		if !strings.Contains(control["./control"], line+"\n") {
			t.Errorf("control has no %q:\n%s", line, control["./control"])
		}
	}
	if control["./conffiles"] != "/etc/logrotate.d/weir\n/etc/weir/weir.yaml\n" || !strings.Contains(data["./etc/logrotate.d/weir"], "systemctl reload weir") || data["./etc/weir/weir.yaml"] == "" || data["./usr/bin/weir"] == "" || data["./usr/share/doc/weir/copyright"] == "" {
		t.Errorf("conffiles are %q, and the package has %q", control["./conffiles"], namesOf(data))
	}
	unit := data["./usr/lib/systemd/system/weir.service"]
	if !strings.Contains(unit, "\nExecStart=/usr/bin/weir run -c /etc/weir/weir.yaml\n") || strings.Contains(unit, "local") || !strings.Contains(unit, "\nProtectSystem=strict\n") {
		t.Errorf("the unit is\n%s", unit)
	}
	for _, script := range []string{"./postinst", "./prerm", "./postrm"} {
		c := exec.CommandContext(t.Context(), "sh", "-n")
		c.Stdin = strings.NewReader(control[script])
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	if strings.Contains(control["./postinst"], "\tsystemctl start") || strings.Contains(control["./postinst"], "invoke") {
		t.Error("postinst starts weir")
	}
	if data["./usr/share/man/man1/weir.1.gz"] != "manual" || !strings.Contains(control["./md5sums"], "  usr/share/man/man1/weir.1.gz\n") {
		t.Errorf("the package has no manual page: %q", namesOf(data))
	}
	if tool, err := exec.LookPath("dpkg-deb"); err == nil { // dpkg-deb, if installed, must accept the package
		for _, flag := range []string{"--info", "--contents"} {
			if out, err := exec.CommandContext(t.Context(), tool, flag, file).CombinedOutput(); err != nil {
				t.Errorf("dpkg-deb %s: %v: %s", flag, err, out)
			}
		}
	}
}

// The package has a manual page for each command, which man can format, and completions for the shells.
func TestHelpFiles(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "weir")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/weir")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files, err := writtenBy(t.Context(), program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, f := range files {
		texts[f.name] = string(f.data)
	}
	for file, title := range map[string]string{"man1/weir.1": "WEIR 1", "man1/weir-run.1": `WEIR\-RUN 1`, "man1/weir-top.1": `WEIR\-TOP 1`, "man1/weir-tls-report.1": `WEIR\-TLS\-REPORT 1`, "man5/weir.yaml.5": "WEIR.YAML 5"} {
		name := filepath.Base(file)
		compressed := texts["usr/share/man/"+file+".gz"]
		if compressed == "" {
			t.Errorf("there is no page %s in %q", name, namesOf(texts))
			continue
		}
		page, err := io.ReadAll(unzipped(t, []byte(compressed)))
		if err != nil || !strings.HasPrefix(string(page), ".TH "+title+" ") {
			t.Errorf("%s, %v: %s", name, err, page)
		}
		formatter, err := exec.LookPath("groff")
		if err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			continue
		}
		c := exec.CommandContext(t.Context(), formatter, "-man", "-Tutf8", "-ww", "-z")
		c.Stdin = bytes.NewReader(page)
		if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("groff warns about %s: %v: %s", name, err, out)
		}
	}
	for _, c := range completions {
		if !strings.Contains(texts[c.file], "weir") || !strings.Contains(texts[c.file], "__complete") {
			t.Errorf("%s completes nothing for %s", c.file, c.shell)
		}
	}
	if _, err := writtenBy(t.Context(), "/bin/false", t.TempDir()); err == nil || !strings.HasPrefix(err.Error(), "weir man ") {
		t.Errorf("a weir that fails: %v", err)
	}
}

// Purging the package deletes the keys, also in a folder that the package did not make.
// Removing it keeps them. The service is disabled also where systemd does not run.
func TestDebScripts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	run := func(script, action string) string {
		t.Helper()
		text, err := os.ReadFile("../deploy/debian/" + script)
		if err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), "sh", "-s", action)
		c.Stdin = strings.NewReader(strings.NewReplacer("/var/", root+"/var/", "/run/", root+"/run/").Replace(string(text)))
		c.Env = []string{"PATH=" + root + "/bin:" + os.Getenv("PATH")}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", script, action, err, out)
		}
		return string(out)
	}
	folder := func(name string) string {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(name, 0o700); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, tool := range []string{"systemctl", "deb-systemd-invoke"} {
		if err := os.WriteFile(filepath.Join(folder("bin"), tool), []byte("#!/bin/sh\necho $(basename $0) $*\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	byHand, elsewhere := folder("var/lib/weir/certificates"), folder("srv/logs")
	private := folder("var/log/private/weir")
	if err := os.Symlink(elsewhere, filepath.Join(root, "var/log/weir")); err != nil {
		t.Fatal(err)
	}
	exists := func(want bool, names ...string) {
		t.Helper()
		for _, name := range names {
			if _, err := os.Lstat(name); (err == nil) != want {
				t.Errorf("%s exists: %t", name, !want)
			}
		}
	}
	run("postrm", "remove")
	exists(true, byHand, private, root+"/var/log/weir")
	run("postrm", "purge")
	exists(false, filepath.Dir(byHand), private, root+"/var/log/weir")
	exists(true, elsewhere)

	const disable = "systemctl --no-reload disable weir.service\n"
	f := func(action, want string) {
		t.Helper()
		if got := run("prerm", action); got != want {
			t.Errorf("prerm %s ran %q, want %q", action, got, want)
		}
	}
	f("remove", disable)
	f("upgrade", "")
	folder("run/systemd/system")
	f("remove", "deb-systemd-invoke stop weir.service\n"+disable)
	f("upgrade", "")
}

type arMembers struct {
	names []string
	data  map[string][]byte
}

func membersOf(t *testing.T, file string) arMembers {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(text, []byte("!<arch>\n")) {
		t.Fatalf("%s is no archive of ar: %v", file, err)
	}
	all := arMembers{data: map[string][]byte{}}
	for text = text[8:]; len(text) >= 60; {
		name := strings.TrimSpace(string(text[:16]))
		size := 0
		for _, c := range strings.TrimSpace(string(text[48:58])) {
			size = size*10 + int(c-'0')
		}
		all.names, all.data[name] = append(all.names, name), text[60:60+size]
		text = text[60+size+size%2:]
	}
	return all
}

func unzipped(t *testing.T, data []byte) io.Reader {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSBOM(t *testing.T) {
	t.Parallel()
	b := newTestBuilder(t)
	text, err := b.sbom(b.built[build{weir, targets[0]}])
	if err != nil {
		t.Fatal(err)
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if m := bom.Metadata.Component; m.Name != "weir" || m.Version != "v"+testVersion || bom.Metadata.Timestamp != "2026-11-22T19:00:00Z" || bom.SpecVersion != cdx.SpecVersion1_6 {
		t.Errorf("the SBOM is of %+v", bom.Metadata)
	}
	found := map[string]bool{}
	for _, c := range *bom.Components {
		found[c.Name] = true
		if c.Version == "" || !strings.HasPrefix(c.PackageURL, "pkg:golang/"+c.Name+"@") {
			t.Errorf("the SBOM has %+v", c)
		}
	}
	if !found["std"] || !found["github.com/google/go-containerregistry"] { // the modules of this test
		t.Errorf("the SBOM has the modules %v", found)
	}
}

func TestVersionOfRelease(t *testing.T) {
	t.Parallel()
	s := &source{commit: "0123456789abcdef", time: time.Date(2026, 11, 22, 19, 0, 0, 0, time.UTC)}
	f := func(next, tags, want string) {
		t.Helper()
		got, err := s.versionBy(next, strings.Fields(tags))
		if want == "" && err == nil || want != "" && (got != want || err != nil) {
			t.Errorf("on the way to %s, with the tags %q, the version is %q, %v; want %q", next, tags, got, err, want)
		}
	}
	f("0.1.0", "", testVersion)
	f("0.1.0", "v0.1.0", "0.1.0")
	f("0.1.0", "nightly v0.1.0", "0.1.0")
	f("0.1.0", "nightly", testVersion)
	f("0.1.0", "v0.2.0", "")
	f("1.0.0-rc.1", "v1.0.0-rc.1", "1.0.0-rc.1")
	f("1.0.0-rc.1", "", "1.0.0-rc.1.dev.20261122190000.g0123456789ab")
	if v := debianVersion("1.0.0-rc.1"); v != "1.0.0~rc.1" {
		t.Errorf("Debian would have the version %s", v)
	}
	for _, chart := range []string{"version: 0.1.0\nappVersion: \"0.1.1\"\n", "version: 0.1\nappVersion: \"0.1\"\n", "version: 0.1.0\n", ""} {
		if v, err := versionOf([]byte(chart)); err == nil {
			t.Errorf("%q has the version %s", chart, v)
		}
	}
}

// weir cannot be released with changes that are not committed.
func TestChangesAreRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), "git", append([]string{"-C", root, "-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	file := filepath.Join(root, chartFile)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	write("version: 0.1.0\nappVersion: \"0.1.0\"\n")
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--no-gpg-sign", "--message", "a")
	git("tag", "v0.1.0")
	s, err := sourceOf(t.Context(), root)
	if err != nil || s.version != "0.1.0" || len(s.commit) != 40 || len(s.files) != 1 || time.Since(s.time) > time.Hour {
		t.Fatalf("the commit is %+v, %v", s, err)
	}
	write("version: 0.1.0\nappVersion: \"0.1.0\"\n# changed\n")
	if _, err := sourceOf(t.Context(), root); err == nil || !strings.Contains(err.Error(), chartFile) {
		t.Errorf("with a change there is the error %v", err)
	}
}
