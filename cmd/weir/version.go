package main

import (
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
)

// A release build sets both: -ldflags "-X main.version=v1.2.3 -X main.revision=COMMIT".
// Otherwise they come from the build information of the Go toolchain.
var version, revision string

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and commit of weir, and the version of Go",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(c.OutOrStdout(), versionLine())
			return err
		},
	}
}

func versionLine() string {
	return fmt.Sprintf("weir %s (commit %s, %s, %s/%s)", buildVersion(), buildRevision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// build returns what this binary tells about itself.
func build() node.Build { return node.Build{Version: buildVersion(), Revision: buildRevision()} }

// buildVersion returns the version of this binary for logs, metrics and reports.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, _ := debug.ReadBuildInfo()
	return versionIn(info)
}

// buildRevision returns the commit of this binary.
func buildRevision() string {
	if revision != "" {
		return revision
	}
	info, _ := debug.ReadBuildInfo()
	return revisionIn(info)
}

// versionIn returns the version that "go build" or "go install" recorded: a tag, or a
// version that Go makes from the last tag and the commit. With -buildvcs=false there is
// none.
func versionIn(info *debug.BuildInfo) string {
	if info == nil {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if commit, _ := commitIn(info); commit != "" {
		return "devel-" + commit[:min(12, len(commit))]
	}
	return "devel"
}

// pseudoVersion ends with twelve digits of the commit, as "go install ...@main" writes it.
var pseudoVersion = regexp.MustCompile(`[-.]\d{14}-([0-9a-f]{12})(?:\+|$)`)

// revisionIn returns the commit, with "-dirty" if the working tree had changes.
func revisionIn(info *debug.BuildInfo) string {
	if info == nil {
		return "unknown"
	}
	commit, modified := commitIn(info)
	if modified {
		return commit + "-dirty"
	}
	if commit != "" {
		return commit
	}
	if m := pseudoVersion.FindStringSubmatch(info.Main.Version); m != nil {
		return m[1]
	}
	return "unknown"
}

// commitIn returns the commit of the working tree in which Go built; empty: unknown.
func commitIn(info *debug.BuildInfo) (commit string, modified bool) {
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return commit, modified && commit != ""
}
