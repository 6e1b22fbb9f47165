// Weir-soak is "weir soak" alone: a load tool that watches for anomalies.
//
//	go install github.com/weirproxy/weir/cmd/weir-soak@latest
package main

import (
	"cmp"
	"context"
	"os"
	"runtime/debug"

	"github.com/weirproxy/weir/soak/command"
)

// version is set by a release build: -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	root := command.New("weir-soak", "--worker")
	root.Version = cmp.Or(version, builtFrom())
	os.Exit(command.Main(context.Background(), root, os.Args[1:], os.Stdout, os.Stderr))
}

// builtFrom returns the version that the Go toolchain recorded in the binary.
func builtFrom() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
