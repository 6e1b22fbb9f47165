package config

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long nothing may happen before files are looked at: an
	// editor or a copying tool needs several steps for one change.
	settle = 200 * time.Millisecond
	// patience bounds settle where files change all the time.
	patience = 2 * time.Second
	// lookAnyway is how often files are looked at without any event. Network
	// and FUSE file systems raise none, and folders can be replaced unseen.
	lookAnyway = time.Minute
)

// NewWatch begins to watch the file at path, out of which c was loaded, and the
// files that c names. It watches folders, those of symbolic links on the way
// included, so that it sees files replaced by a rename and the swapped links of
// a mounted ConfigMap. Standard input ("-") is not watched. What changes after
// NewWatch is noticed as soon as Run runs, and so is a path that was written
// since c was loaded. Run ends the watch; without it, the caller has to Close.
//
// If the caller used files before NewWatch, read has their contents from before that use.
// The watch also notices a file that has changed since then.
func NewWatch(path string, c *Config, read Contents) (*Watch, error) {
	files := c.Files()
	if path != standardInput {
		files = append(files, path)
	}
	w, err := newWatch(files)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the configuration %s: %w; reload it with SIGHUP, or raise fs.inotify.max_user_instances and max_user_watches", path, err)
	}
	if sum, known := w.sums[path]; known && sum != c.source {
		w.news = true
	}
	for file, sum := range read {
		if now, known := w.sums[file]; known && now != sum {
			w.news = true
		}
	}
	return w, nil
}

// newWatch begins to watch files, and takes what is in them for known.
func newWatch(files []string) (*Watch, error) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	w := &Watch{notify: notify, files: files, sums: Contents{}}
	if err := w.follow(); err != nil {
		w.Close()
		return nil, err
	}
	w.look() // after follow: a change in between raises an event
	return w, nil
}

// Watch notices when files change. See NewWatch.
type Watch struct {
	notify *fsnotify.Watcher
	files  []string
	sums   Contents
	news   bool // something changed before Run
}

// Close ends a watch that does not run.
func (w *Watch) Close() error { return w.notify.Close() }

// Run calls changed whenever the content of a file is another than before;
// events that change no content, and files that cannot be read at the moment,
// are passed over. changed is called on Run's goroutine. Run returns when ctx ends.
func (w *Watch) Run(ctx context.Context, changed func()) {
	defer w.Close()
	if w.news {
		changed()
	}
	timer := time.NewTimer(lookAnyway)
	defer timer.Stop()
	var since time.Time // the first event that was not acted on yet
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			since = time.Time{}
			w.follow() // a folder that is gone now may be back at the next look
			if w.look() {
				changed()
			}
			timer.Reset(lookAnyway)
			continue
		case <-w.notify.Events:
		case <-w.notify.Errors: // events were lost: look
		}
		if since.IsZero() {
			since = time.Now()
		}
		timer.Reset(min(settle, max(0, patience-time.Since(since))))
	}
}

// follow watches every folder that can change what the files are.
func (w *Watch) follow() error {
	var first error
	for _, f := range w.files {
		for _, folder := range folders(f) {
			// Adding a folder again does nothing, unless another one has its name now.
			if err := w.notify.Add(folder); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

// look reports whether the content of a file is another than when it was last read.
func (w *Watch) look() (news bool) { return w.sums.update(w.files) }

// Contents has a checksum of each file, taken when the file was last read.
type Contents map[string][sha256.Size]byte

// ContentsOf reads files. Those that cannot be read are left out.
func ContentsOf(files []string) Contents {
	c := Contents{}
	c.update(files)
	return c
}

// update reads files again, and returns true if one of them has changed.
func (c Contents) update(files []string) (news bool) {
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || !info.Mode().IsRegular() {
			continue // in the middle of a replacement, or a pipe that might never end
		}
		data, err := os.ReadFile(f)
		if err != nil {
			continue // an event will come
		}
		sum := sha256.Sum256(data)
		if last, known := c[f]; !known || last != sum {
			c[f] = sum
			news = true
		}
	}
	return news
}

// maxLinks bounds the symbolic links on the way to a file, as the kernel does.
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
			done = filepath.Join(done, name) // done holds no links: .. is the folder above
			continue
		}
		at := filepath.Join(done, name)
		target, err := os.Readlink(at)
		if err != nil { // no link
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
