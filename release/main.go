// Command release builds the parts of a release of weir: binaries with an
// SBOM, an image for two architectures, a chart and Debian packages. The same
// commit gives the same bytes. docs/release.md says how to use it.
//
// It is a module of its own, so that weir's go.mod does not name what only a
// release needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
)

const usage = `usage: make release, or
  go -C release run . [flags] PART...           build: binaries, image, chart, deb, or all
  go -C release run . [flags] push FOLDER NAME  push the image or the chart in FOLDER as NAME

flags:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// part is a part of a release.
type part struct {
	name  string
	build func(*builder, context.Context) error
}

var parts = []part{{"binaries", (*builder).binaries}, {"image", (*builder).image}, {"chart", (*builder).chart}, {"deb", (*builder).debs}}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	flags.Usage = func() { fmt.Fprint(flags.Output(), usage); flags.PrintDefaults() }
	root := flags.String("root", "..", "the `folder` with the working tree of weir")
	out := flags.String("out", "../dist", "the `folder` to write to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	args = flags.Args()
	if len(args) == 3 && args[0] == "push" {
		return push(ctx, args[1], args[2], os.Stdout)
	}
	for _, name := range args {
		if name != "all" && !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("there is no part %q; run it with -h", name)
		}
	}
	if len(args) == 0 {
		flags.Usage()
		return errors.New("name what to build")
	}
	s, err := sourceOf(ctx, *root)
	if err != nil {
		return err
	}
	b, err := newBuilder(s, *out)
	if err != nil {
		return err
	}
	defer b.close()
	for _, p := range parts {
		if slices.Contains(args, p.name) || slices.Contains(args, "all") {
			if err := p.build(b, ctx); err != nil {
				return err
			}
		}
	}
	return b.checksums(os.Stdout)
}
