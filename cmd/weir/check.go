package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/config"
)

func newCheckCommand() *cobra.Command {
	var path string
	c := &cobra.Command{
		Use:   "check -c FILE",
		Short: "Report everything that is wrong with a configuration",
		Long: `Check loads a configuration as run does, with the environment and every
certificate, key and CA file that it names, and opens no port. Each error is one line,

  FILE:LINE:COLUMN: what is wrong, and what would be right

and all of them come at once, with exit status 1. What is allowed and probably
not meant is a line with "warning:"; the exit status is then 0.`,
		Example: `  weir check -c weir.yaml
  envsubst < weir.tmpl | weir check -c -`,
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		RunE:                  func(c *cobra.Command, _ []string) error { return check(c, path) },
	}
	c.Flags().StringVarP(&path, "config", "c", "", "configuration `FILE`; - is standard input")
	c.MarkFlagRequired("config")
	return c
}

func check(c *cobra.Command, path string) error {
	cfg, err := config.Load(path, os.LookupEnv)
	if err != nil {
		return err
	}
	if _, err := checkTLS(cfg); err != nil {
		return err
	}
	for _, w := range cfg.Warnings {
		fmt.Fprintf(c.ErrOrStderr(), "%s: warning: %s\n", w.Position, w.Message)
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: ok: %s, %s, %s, hash %s\n", path,
		count(len(cfg.Listeners), "listener"), count(routes(cfg), "route"), count(len(cfg.Backends), "backend"), cfg.Hash)
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
