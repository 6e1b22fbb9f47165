package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

func newCheckCommand() *cobra.Command {
	f := files{inPod: true, many: true}
	var objects bool
	c := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Report all errors in configuration files",
		Long: `Check loads each configuration as run does, with the environment and every
certificate, key and CA file that it names, but opens no port. It reports all
errors at once, one per line, and ends with status 1:

  FILE:LINE:COLUMN: error, and the correction

Settings that are allowed but probably not intended are lines with "warning:"; the
exit status is then 0.
` + aboutFiles + `

With --cluster it also reads the objects of the cluster in the section kubernetes,
once, and prints the generated configuration and the errors of the objects.`,
		Example: `  weir check weir.yaml
  weir check examples/*.yaml
  envsubst < weir.tmpl | weir check -`,
		SuggestFor:            []string{"validate", "verify", "test", "configtest"},
		DisableFlagsInUseLine: true,
		PreRunE: func(c *cobra.Command, args []string) error {
			if err := f.choose(c, args); err != nil {
				return err
			}
			if objects && len(f.paths) > 1 {
				return errors.New("--cluster takes one configuration file")
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error {
			return each(f.paths, func(path string) error { return check(c, path, objects) })
		},
	}
	f.flags(c)
	c.Flags().BoolVar(&objects, "cluster", false, "check the objects of the cluster as well")
	return c
}

func check(c *cobra.Command, path string, objects bool) error {
	cfg, warnings, err := loadToCheck(path)
	for _, w := range warnings {
		fmt.Fprintf(c.ErrOrStderr(), "%s: warning: %s\n", w.Position, w.Message)
	}
	if err != nil {
		return err
	}
	more, err := node.Check(cfg)
	if err != nil {
		return err
	}
	for _, w := range more {
		fmt.Fprintf(c.ErrOrStderr(), "%s: warning: %s\n", cmp.Or(path, node.BuiltIn), w)
	}
	fmt.Fprintf(c.OutOrStdout(), "%s: ok: %s, %s, %s, hash %s\n", cmp.Or(path, node.BuiltIn),
		count(len(cfg.Listeners), "listener"), count(routes(cfg), "route"), count(len(cfg.Backends), "backend"), cfg.Hash)
	if objects {
		return checkCluster(c, cfg)
	}
	return nil
}

// loadToCheck is node.Load, but returns the warnings even if there are errors.
func loadToCheck(path string) (*config.Config, config.Errors, error) {
	if path != "" {
		return file.Check(path, os.LookupEnv)
	}
	cfg, err := node.Load(path)
	if err != nil {
		return nil, nil, err
	}
	return cfg, cfg.Warnings, nil
}

// routes counts the routes of the file: one route may be several Routes in cfg.
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
