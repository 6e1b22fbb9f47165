package main

import (
	"runtime/debug"
	"strings"
	"testing"

	"github.com/weirproxy/weir/cmd/weir/node"
)

func TestVersion(t *testing.T) {
	version, revision = "v1.2.3", "0123456789abcdef"
	defer func() { version, revision = "", "" }()
	if out, _, _ := weir("version"); !strings.HasPrefix(out, "weir v1.2.3 (commit 0123456789abcdef, go1.") {
		t.Errorf("printed %q", out)
	}
	if b := build(); b != (node.Build{Version: "v1.2.3", Revision: "0123456789abcdef"}) {
		t.Errorf("the node is told %+v", b)
	}
	version, revision = "", ""
	for _, v := range []string{buildVersion(), buildRevision()} {
		if v == "" || strings.ContainsAny(v, " \n") {
			t.Errorf("without -ldflags the version or the commit is %q", v)
		}
	}
}

// The build information of plain "go build" and "go install" is enough.
func TestVersionInBuildInfo(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	f := func(main, revision, modified, wantVersion, wantRevision string) {
		t.Helper()
		info := &debug.BuildInfo{Main: debug.Module{Version: main}}
		if revision != "" {
			info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: revision}, {Key: "vcs.modified", Value: modified}}
		}
		if v, r := versionIn(info), revisionIn(info); v != wantVersion || r != wantRevision {
			t.Errorf("%s and %s are the version %s and the commit %s; want %s and %s", main, revision, v, r, wantVersion, wantRevision)
		}
	}
	f("v1.2.3", commit, "false", "v1.2.3", commit)
	f("v0.0.0-20261122190000-0123456789ab", commit, "false", "v0.0.0-20261122190000-0123456789ab", commit)
	f("v0.0.0-20261122190000-0123456789ab+dirty", commit, "true", "v0.0.0-20261122190000-0123456789ab+dirty", commit+"-dirty")
	// go install github.com/weirproxy/weir/cmd/weir@main, and of a tag.
	f("v0.1.1-0.20261122190000-0123456789ab", "", "", "v0.1.1-0.20261122190000-0123456789ab", "0123456789ab")
	f("v1.2.3-rc.1.0.20261122190000-0123456789ab", "", "", "v1.2.3-rc.1.0.20261122190000-0123456789ab", "0123456789ab")
	f("v1.2.3", "", "", "v1.2.3", "unknown")
	f("(devel)", commit, "false", "devel-0123456789ab", commit)
	f("(devel)", "", "", "devel", "unknown")
	if v, r := versionIn(nil), revisionIn(nil); v != "devel" || r != "unknown" {
		t.Errorf("without build information: %s, %s", v, r)
	}
}
