package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/config"
)

func newCheckCommand() *cobra.Command {
	var path string
	var objects bool
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Report everything that is wrong with a configuration",
		Long: `Check loads a configuration as run does, with the environment and every
certificate, key and CA file that it names, and opens no port. Each error is one line,

  FILE:LINE:COLUMN: what is wrong, and what would be right

and all of them come at once, with exit status 1. What is allowed and probably
not meant is a line with "warning:"; the exit status is then 0.

With --cluster it also reads the objects of the cluster that the section
kubernetes names, once, and says what they come to and what is wrong with them.`,
		Example: `  weir check -c weir.yaml
  envsubst < weir.tmpl | weir check -c -`,
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		PreRunE:               requireFile,
		RunE:                  func(c *cobra.Command, _ []string) error { return check(c, path, objects) },
	}
	c.Flags().StringVarP(&path, "config", "c", "", "configuration `FILE`; - is standard input")
	c.Flags().BoolVar(&objects, "cluster", false, "look at the objects of the cluster as well")
	return c
}

func check(c *cobra.Command, path string, objects bool) error {
	cfg, err := load(path)
	if err != nil {
		return err
	}
	if _, err := checkTLS(cfg); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(c.ErrOrStderr(), "%s: warning: %s\n", w.Position, w.Message)
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: ok: %s, %s, %s, hash %s\n", cmp.Or(path, builtIn),
		count(len(cfg.Listeners), "listener"), count(routes(cfg), "route"), count(len(cfg.Backends), "backend"), cfg.Hash)
	if objects {
		return checkObjects(c, cfg, connectKube)
	}
	return nil
}

// routes counts the routes of the file: one may be several in cfg.
func routes(cfg *config.Config) int {
	names := map[string]bool{}
	for _, r := range cfg.Routes {
		names[r.Name] = true
	}
	return len(names)
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
