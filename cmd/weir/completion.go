package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// shells write the script that makes a shell complete the commands and flags of root.
var shells = map[string]func(root *cobra.Command, out io.Writer) error{
	"bash":       func(root *cobra.Command, out io.Writer) error { return root.GenBashCompletionV2(out, true) },
	"fish":       func(root *cobra.Command, out io.Writer) error { return root.GenFishCompletion(out, true) },
	"powershell": func(root *cobra.Command, out io.Writer) error { return root.GenPowerShellCompletionWithDesc(out) },
	"zsh":        func(root *cobra.Command, out io.Writer) error { return root.GenZshCompletion(out) },
}

var shellNames = []string{"bash", "fish", "powershell", "zsh"}

func newCompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion " + strings.Join(shellNames, "|"),
		Short: "Print a script that completes commands and flags in your shell",
		Long: `Completion prints a script for a shell. With it, the Tab key completes weir's
commands, flags and files.`,
		Example: `  source <(weir completion bash)                               this shell only
  weir completion bash > /etc/bash_completion.d/weir           every new bash
  weir completion zsh > "${fpath[1]}/_weir"                    every new zsh
  weir completion fish > ~/.config/fish/completions/weir.fish  every new fish`,
		ValidArgs: shellNames,
		Args:      oneShell,
		RunE: func(c *cobra.Command, args []string) error {
			return shells[args[0]](c.Root(), c.OutOrStdout())
		},
	}
}

// plainUsages removes the marks of placeholders from the texts of flags, because cobra
// offers these texts to the shell as they are. Help shows the placeholders without marks.
func plainUsages(root *cobra.Command) {
	for _, c := range allCommands(root) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
	}
}

// completeValues makes the shell offer the only values of a flag of c, instead of files.
func completeValues(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // c has no such flag
	}
}

// oneShell requires the name of one known shell.
func oneShell(c *cobra.Command, args []string) error {
	choice := strings.Join(shellNames, ", ")
	switch {
	case len(args) != 1:
		return fmt.Errorf("weir completion needs the name of one shell; write one of %s", choice)
	case !slices.Contains(shellNames, args[0]):
		return fmt.Errorf("there is no completion for the shell %q; write one of %s", args[0], choice)
	}
	return nil
}
