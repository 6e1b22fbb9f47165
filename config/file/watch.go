package file

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/weirproxy/weir/config"
)

const (
	// settle is how long there must be no event before weir reads the files: an editor or
	// a copying tool needs several steps for one change.
	settle = 200 * time.Millisecond
	// patience limits settle if files change all the time.
	patience = 2 * time.Second
	// lookAnyway is how often weir reads the files without any event. Network and FUSE
	// file systems send no events, and a folder can be replaced without an event.
	lookAnyway = time.Minute
)

// NewWatch begins to watch the file at path, from which c was loaded, and the files that
// c names. It watches folders, including the folders of symbolic links on the way. So it
// notices files that are replaced by a rename, and the changed links of a mounted
// ConfigMap. It does not watch standard input ("-"). Run reports changes since NewWatch
// as soon as it runs, and also a change of path since c was loaded. Run ends the watch;
// if the caller does not call Run, the caller must call Close.
//
// If the caller used files before NewWatch, read has their contents from before that use.
// The watch also notices a file that has changed since then. It also watches more files.
func NewWatch(path string, c *config.Config, read Contents, more ...string) (*Watch, error) {
	files := append(c.Files(), more...)
	if path != standardInput {
		files = append(files, path)
	}
	files = append(files, pathsOf(c.Included.Files)...)
	w, err := newWatch(files, c.Included.Patterns)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the configuration %s: %w; reload it with SIGHUP, or raise fs.inotify.max_user_instances and max_user_watches", path, err)
	}
	if sum, known := w.sums[path]; known && sum != c.Source {
		w.news = true
	}
	for _, f := range c.Included.Files {
		if sum, known := w.sums[f.Path]; known && sum != f.Source {
			w.news = true
		}
	}
	if !slices.Equal(w.matches, pathsOf(c.Included.Files)) {
		w.news = true // a file has appeared or gone
	}
	for file, sum := range read {
		if now, known := w.sums[file]; known && now != sum {
			w.news = true
		}
	}
	return w, nil
}

func pathsOf(files []config.IncludedFile) (all []string) {
	for _, f := range files {
		all = append(all, f.Path)
	}
	return all
}

// newWatch begins to watch files, and records their current contents. It also watches which
// files the patterns of include stand for.
func newWatch(files, patterns []string) (*Watch, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	w := &Watch{notify: notify, files: files, patterns: patterns, sums: Contents{}}
	if err := w.follow(); err != nil {
		w.Close()
		return nil, err
	}
	w.look() // after follow: a later change causes an event
	return w, nil
}

// Watch notices when files change. See NewWatch.
type Watch struct {
	notify   *fsnotify.Watcher
	files    []string
	patterns []string // of files that the configuration includes
	matches  []string // the files that the patterns stood for at the last look
	sums     Contents
	news     bool // something changed before Run
}

// Close ends a watch for which Run was not called.
func (w *Watch) Close() error { return w.notify.Close() }

// Run calls changed each time the content of a file has changed. It ignores events
// without a change of content, and files that it cannot read at the moment. It calls
// changed on its own goroutine. Run returns when ctx ends.
func (w *Watch) Run(ctx context.Context, changed func()) {
	defer w.Close()
	if w.news {
		changed()
	}
	timer := time.NewTimer(lookAnyway)
	defer timer.Stop()
	var since time.Time // the first event after the last look
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			since = time.Time{}
			w.follow() // a folder that is missing now may exist again at the next look
			if w.look() {
				changed()
			}
			timer.Reset(lookAnyway)
			continue
		case <-w.notify.Events:
		case <-w.notify.Errors: // events were lost, so weir reads the files
		}
		if since.IsZero() {
			since = time.Now()
		}
		timer.Reset(min(settle, max(0, patience-time.Since(since))))
	}
}

// follow watches every folder whose change can change one of the files.
func (w *Watch) follow() error {
	var first error
	for _, f := range slices.Concat(w.files, w.places()) {
		for _, folder := range folders(f) {
			// Adding a folder again has no effect, unless its name belongs to another
			// folder now.
			if err := w.notify.Add(folder); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

// places returns a path in each folder where a file may appear that the configuration
// includes.
func (w *Watch) places() (all []string) {
	for _, pattern := range w.patterns {
		if info, err := os.Stat(pattern); err == nil && info.IsDir() {
			pattern = filepath.Join(pattern, "any")
		}
		if _, err := os.Stat(filepath.Dir(pattern)); err == nil { // the folder itself may be a pattern
			all = append(all, pattern)
		}
	}
	return all
}

// look reports whether the content of a file has changed since the last look, or the files that
// the configuration includes are others.
func (w *Watch) look() (news bool) {
	var matches []string
	for _, pattern := range w.patterns {
		found, _ := includedFiles(pattern) // the reload reports the error
		matches = append(matches, found...)
	}
	news = !slices.Equal(matches, w.matches)
	w.matches = matches
	return w.sums.update(w.files) || news
}

// Contents has a checksum of each file, taken when the file was last read.
type Contents map[string][sha256.Size]byte

// ContentsOf reads files. It omits files that it cannot read.
func ContentsOf(files []string) Contents {
	c := Contents{}
	c.update(files)
	return c
}

// update reads files again, and returns true if one of them has changed.
func (c Contents) update(files []string) (news bool) {
	for _, f := range files {
		sum, err := hashOfFile(f)
		if err != nil {
			continue // the file is being replaced, and an event will follow; or it is a pipe
		}
		if last, known := c[f]; !known || last != sum {
			c[f] = sum
			news = true
		}
	}
	return news
}

// maxLinks limits the symbolic links on the way to a file, as the kernel does.
const maxLinks = 40

// folders returns the folder of path and of each symbolic link on the way to it.
func folders(path string) (all []string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	done, rest := "/", path
	for links := 0; rest != "" && links <= maxLinks; {
		name, after, _ := strings.Cut(rest, "/")
		rest = after
		if name == "" || name == "." || name == ".." {
			done = filepath.Join(done, name) // done contains no links, so .. is the folder above
			continue
		}
		at := filepath.Join(done, name)
		target, err := os.Readlink(at)
		if err != nil { // not a link
			if strings.Trim(rest, "/") == "" {
				all = append(all, done)
			}
			done = at
			continue
		}
		links++
		all = append(all, done)
		if filepath.IsAbs(target) {
			done = "/"
		}
		rest = target + "/" + rest
	}
	return all
}
