package file

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// put replaces a file in one step, with a rename.
func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, os.Rename(path+".new", path))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// watching runs a watch over files until the test ends. The returned function waits for a
// change.
func watching(t *testing.T, files ...string) (wait func(of string)) {
	t.Helper()
	w, err := newWatch(files, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	news, ended := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx, func() { news <- struct{}{} })
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return func(of string) {
		t.Helper()
		select {
		case <-news:
		case <-time.After(20 * time.Second):
			t.Fatalf("no news of %s", of)
		}
	}
}

func TestWatchFiles(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	file, key, late := filepath.Join(dir, "weir.yaml"), filepath.Join(other, "a.key"), filepath.Join(other, "late.crt")
	put(t, file, "1")
	put(t, key, "1")
	wait := watching(t, key, late, file)
	put(t, file, "2")
	wait("a file that was replaced")
	must(t, os.WriteFile(file, []byte("3"), 0o600))
	wait("a file that was written in place")
	put(t, key, "2")
	wait("an extra file")
	put(t, late, "1")
	wait("a file that was not there at first")
	must(t, os.Remove(file))
	put(t, file, "4")
	wait("a file that was removed and made anew")
}

// The files of a ConfigMap are links to ..data/NAME. ..data is a link to a separate
// folder for each version, so one rename changes all files.
func TestWatchConfigMap(t *testing.T) {
	dir := t.TempDir()
	swap := func(version string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(dir, "..version"+version), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, "..version"+version, "weir.yaml"), []byte(version), 0o600))
		must(t, os.Symlink("..version"+version, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	swap("1")
	file := filepath.Join(dir, "weir.yaml")
	must(t, os.Symlink("..data/weir.yaml", file))
	wait := watching(t, file)
	for _, version := range []string{"2", "3", "4"} {
		swap(version)
		must(t, os.RemoveAll(filepath.Join(dir, "..version"+string(version[0]-1))))
		wait("version " + version)
	}
}

// The file is a link into another folder, which is below a folder that is a link.
func TestWatchLinkedFolders(t *testing.T) {
	dir, real1, real2 := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, filepath.Join(real1, "weir.yaml"), "1")
	put(t, filepath.Join(real2, "weir.yaml"), "2")
	must(t, os.Symlink(real1, filepath.Join(dir, "current")))
	file := filepath.Join(dir, "current", "weir.yaml")
	wait := watching(t, file)
	put(t, filepath.Join(real1, "weir.yaml"), "1b")
	wait("a file behind a linked folder")
	must(t, os.Symlink(real2, filepath.Join(dir, "next")))
	must(t, os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "current")))
	wait("another folder behind the link")
	put(t, filepath.Join(real2, "weir.yaml"), "2b")
	wait("a file in the new folder")
}

// Neither an event without a change of content nor a file that is missing for a moment is
// reported.
func TestWatchLooksAtContent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	put(t, file, "1")
	w, err := newWatch([]string{file}, nil)
	must(t, err)
	defer w.Close()
	f := func(what string, want bool) {
		t.Helper()
		if got := w.look(); got != want {
			t.Errorf("%s: news %v, want %v", what, got, want)
		}
	}
	f("nothing happened", false)
	put(t, file, "1")
	f("replaced by the same", false)
	must(t, os.Chtimes(file, time.Now(), time.Now().Add(time.Hour)))
	f("touched", false)
	must(t, os.Remove(file))
	f("gone", false)
	put(t, file, "1")
	f("back", false)
	put(t, file, "2")
	f("changed", true)
	f("looked at again", false)
}

func TestWatchEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f := func(what, path string) {
		t.Helper()
		w, err := NewWatch(path, &config.Config{}, nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		w.Run(ctx, func() { t.Errorf("%s: news", what) })
	}
	f("standard input", "-")
	f("a file that is not there yet", filepath.Join(t.TempDir(), "weir.yaml"))
	_, err := NewWatch(filepath.Join(t.TempDir(), "none", "weir.yaml"), &config.Config{}, nil)
	if err == nil || !strings.Contains(err.Error(), "cannot watch the configuration") || !strings.Contains(err.Error(), "SIGHUP") {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// A change after a file was loaded, and before its watch began, would otherwise stay
// unnoticed until the next change.
func TestWatchNoticesWhatChangedBeforeIt(t *testing.T) {
	const text = "listeners: {a: {address: '127.0.0.1:1', protocol: tcp}}\nroutes: [{listeners: [a], backend: b}]\nbackends: {b: {protocol: tcp, endpoints: ['127.0.0.1:2']}}\n"
	file := filepath.Join(t.TempDir(), "weir.yaml")
	put(t, file, text)
	pair := filepath.Join(t.TempDir(), "pair.pem")
	put(t, pair, "first")
	c, err := Load(file, os.LookupEnv)
	must(t, err)
	c.Certificates = []config.Certificate{{CertFile: pair, KeyFile: pair}}
	read := ContentsOf([]string{pair, pair + ".not"})
	f := func(what string, want bool) {
		t.Helper()
		w, err := NewWatch(file, c, read)
		must(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		got := false
		w.Run(ctx, func() { got = true })
		if got != want {
			t.Errorf("%s: news %v, want %v", what, got, want)
		}
	}
	f("as it was loaded", false)
	put(t, pair, "second")
	f("a certificate that was replaced since it was read", true)
	read = nil
	f("one that was not read before", false)
	put(t, file, text+"# more\n")
	f("written since", true)
}

func TestFolders(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
	must(t, os.Symlink("../x.yaml", filepath.Join(dir, "a/up")))
	must(t, os.Symlink(dir+"/a/b", filepath.Join(dir, "abs")))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	f := func(path string, want ...string) {
		t.Helper()
		got := folders(filepath.Join(dir, path))
		for i := range want {
			want[i] = filepath.Join(dir, want[i])
		}
		if !slices.Equal(slices.Compact(got), want) {
			t.Errorf("folders of %s are %q, want %q", path, got, want)
		}
	}
	f("weir.yaml", "")
	f("a/b/weir.yaml", "a/b")
	f("a/up", "a", "")
	f("abs/weir.yaml", "", "a/b")
	f("abs/none/weir.yaml", "", "a/b/none")
	f("loop", "")
}
