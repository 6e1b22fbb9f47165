package main

import (
	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/config"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON Schema of the configuration file, for editors",
		Long: `Schema prints a JSON Schema (draft 2020-12) of the configuration file. With it an
editor completes keys, shows what they do, and marks errors.

An editor with yaml-language-server, such as VS Code, Neovim or Helix, uses the
schema if the file begins with this comment:

  # yaml-language-server: $schema=weir.schema.json

A schema cannot express every condition. "weir check" reports all errors.`,
		Example: `  weir schema > weir.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := c.OutOrStdout().Write(config.Schema())
			return err
		},
	}
}
