package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// source is the commit from which a release is made.
type source struct {
	root    string
	version string // without "v": 0.1.0, or 0.1.0-dev.TIME.gCOMMIT between releases
	commit  string
	time    time.Time // of the commit; every file in the release gets it
	files   []string  // paths relative to root
}

var (
	versionLine = regexp.MustCompile(`(?m)^version: "?([^"\n]*)"?$`)
	appLine     = regexp.MustCompile(`(?m)^appVersion: "?([^"\n]*)"?$`)
	number      = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
)

const chartFile = "deploy/helm/weir/Chart.yaml"

// sourceOf reads the commit in the working tree at root, which must have no changes.
func sourceOf(ctx context.Context, root string) (*source, error) {
	s := &source{root: root}
	changes, err := s.git(ctx, "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if changes != "" {
		return nil, fmt.Errorf("the working tree differs from its commit; commit these changes or take them away:\n%s", changes)
	}
	stamp, err := s.git(ctx, "show", "--no-patch", "--format=%H %ct", "HEAD")
	if err != nil {
		return nil, err
	}
	commit, seconds, _ := strings.Cut(stamp, " ")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("cannot read the time of the commit %s: %w", commit, err)
	}
	s.commit, s.time = commit, time.Unix(unix, 0).UTC()
	tags, err := s.git(ctx, "tag", "--points-at", "HEAD")
	if err != nil {
		return nil, err
	}
	files, err := s.git(ctx, "ls-files")
	if err != nil {
		return nil, err
	}
	s.files = strings.Split(files, "\n")
	chart, err := os.ReadFile(filepath.Join(root, chartFile))
	if err != nil {
		return nil, err
	}
	next, err := versionOf(chart)
	if err != nil {
		return nil, err
	}
	s.version, err = s.versionBy(next, strings.Fields(tags))
	return s, err
}

// versionOf returns the version in Chart.yaml: of this release, or of the next one.
func versionOf(chart []byte) (string, error) {
	v, app := versionLine.FindSubmatch(chart), appLine.FindSubmatch(chart)
	if v == nil || app == nil || string(v[1]) != string(app[1]) || !number.Match(v[1]) {
		return "", fmt.Errorf("version and appVersion in %s have to be the same version, such as 0.1.0", chartFile)
	}
	return string(v[1]), nil
}

// versionBy returns next for a commit with that tag, and a prerelease of it for any other
// commit.
func (s *source) versionBy(next string, tags []string) (string, error) {
	for _, tag := range tags {
		v, isVersion := strings.CutPrefix(tag, "v")
		switch {
		case tag == "v"+next:
			return next, nil
		case isVersion && number.MatchString(v):
			return "", fmt.Errorf("the commit has the tag %s, and %s has the version %s; set both version and appVersion there, commit, and move the tag", tag, chartFile, next)
		}
	}
	sep := "-dev."
	if strings.Contains(next, "-") {
		sep = ".dev."
	}
	return next + sep + s.time.Format("20060102150405") + ".g" + s.commit[:12], nil
}

// git runs git and returns its output.
func (s *source) git(ctx context.Context, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "git", append([]string{"-C", s.root}, args...)...)
	out, err := c.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("git %s failed: %s", strings.Join(args, " "), strings.TrimSpace(string(failed.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("cannot run git: %w", err)
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// read returns a file of the commit.
func (s *source) read(name string) ([]byte, error) { return os.ReadFile(filepath.Join(s.root, name)) }

// tag returns the version in the form of Go and git.
func (s *source) tag() string { return "v" + s.version }
