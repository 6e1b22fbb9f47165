// Weir is a TCP and TLS reverse proxy that never loses the client's address.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/soak/command"
)

func main() { os.Exit(execute(newRootCommand())) }

// The exit statuses.
const (
	statusError = 1 // the command failed
	statusUsage = 2 // weir does not understand the command line
)

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "A TCP, TLS and HTTP reverse proxy that never loses the client's address",
		Long: `weir runs behind a load balancer. It reads PROXY headers strictly, terminates
TLS for modern and for very old clients, routes by SNI, by Host or as raw TCP,
and reports this node's real health to the load balancer.

The configuration is one YAML file; docs/configuration.md lists all keys.`,
		Example: `  weir demo                  try weir without a file
  weir check weir.yaml       check a configuration file
  weir run weir.yaml         run weir with it`,
		SilenceErrors: true, // execute prints them
		SilenceUsage:  true,
		Version:       versionLine(),
		Args:          knownCommand,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.InitDefaultVersionFlag()
	root.Flags().Lookup("version").Usage = "the same as weir version"
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		var valueless *pflag.ValueRequiredError
		switch {
		case c == root:
			return fmt.Errorf("%w; write a command before its flags, such as weir run -c FILE or weir check -c FILE", err)
		case errors.As(err, &valueless):
			f := valueless.GetFlag()
			value, _ := pflag.UnquoteUsage(f)
			return fmt.Errorf("%w; write --%s %s", err, f.Name, value)
		}
		return err
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentPreRun = func(c *cobra.Command, _ []string) {
		if c.Name() == cobra.ShellCompRequestCmd { // the shell asks
			plainUsages(root)
		}
	}
	root.AddCommand(newRunCommand())
	root.AddCommand(newDemoCommand())
	root.AddCommand(newCheckCommand())
	root.AddCommand(newExplainCommand())
	root.AddCommand(newStatusCommand())
	root.AddCommand(newReloadCommand())
	root.AddCommand(newTopCommand())
	root.AddCommand(newDrainCommand())
	root.AddCommand(newUndrainCommand())
	root.AddCommand(newProbeCommand())
	root.AddCommand(newFmtCommand())
	root.AddCommand(newSchemaCommand())
	root.AddCommand(newCompletionCommand())
	root.AddCommand(newManCommand())
	root.AddCommand(newLintCommand())
	root.AddCommand(newMigrateCommand())
	root.AddCommand(newECHCommand())
	root.AddCommand(command.New("weir soak", "soak", "--worker"))
	root.AddCommand(newTLSCommand())
	root.AddCommand(newVersionCommand())
	root.InitDefaultHelpCmd()
	help, _, _ := root.Find([]string{"help"})
	help.Args = func(_ *cobra.Command, args []string) error {
		c, rest, _ := root.Find(args)
		if !c.HasSubCommands() {
			return nil
		}
		return knownCommand(c, rest)
	}
	return root
}

// otherWays answer words that are commands of other programs, where weir has no such command.
var otherWays = map[string]string{
	"stop":     "SIGTERM ends weir, as systemctl stop weir does",
	"restart":  "systemctl restart weir ends weir and starts it again; weir reload loads the configuration",
	"upgrade":  "SIGUSR2 makes a running weir start its new binary",
	"rollback": "put the earlier binary back and send SIGUSR2, or the earlier configuration file and run weir reload",
	"cordon":   "weir drain makes the health port answer 503 and asks clients to close their connections; POST /cordon on the admin port does only the first",
	"uncordon": "weir undrain takes a drain back; POST /uncordon on the admin port takes a cordon back",
	"logs":     "weir writes its log to standard error; with systemd it is in journalctl -u weir",
	"config":   "weir check checks the file, and GET /config of the admin port shows the configuration in effect",
}

// knownCommand returns an error for an argument that is not a subcommand.
func knownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	c.SuggestionsMinimumDistance = 2
	near := c.SuggestionsFor(args[0])
	switch other := otherWays[args[0]]; {
	case other != "":
		return fmt.Errorf("there is no command %q; %s", args[0], other)
	case strings.HasSuffix(args[0], ".yaml"):
		near = []string{"weir run " + args[0]}
	}
	if len(near) > 0 {
		return fmt.Errorf("there is no command %q; did you mean %s?", args[0], strings.Join(near, " or "))
	}
	return fmt.Errorf("there is no command %q", args[0])
}

// allCommands returns c and all commands below it.
func allCommands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, allCommands(sub)...)
	}
	return all
}

// shown returns the text of an error for a terminal. Errors may contain what a server answered, or the
// content of a file.
func shown(err error) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printable(r)
	}, err.Error())
}

// printable returns "?" in place of a character that can change a terminal.
func printable(r rune) rune {
	if r == utf8.RuneError || !unicode.IsPrint(r) {
		return '?'
	}
	return r
}

// arguments is for commands with least to most arguments, like cobra.RangeArgs. Its error says what to write.
func arguments(least, most int, write string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return errors.New(write)
		}
		return nil
	}
}

// execute runs the command line, prints its error and returns the exit status.
func execute(root *cobra.Command) int {
	begun := false
	for _, c := range allCommands(root) {
		if run := c.RunE; run != nil {
			c.RunE = func(c *cobra.Command, args []string) error {
				begun = true
				return run(c, args)
			}
		}
	}
	c, err := root.ExecuteC()
	out := root.ErrOrStderr()
	var (
		wrong config.Errors
		said  silent
		exit  interface{ ExitStatus() int }
	)
	switch {
	case err == nil:
		return 0
	case !begun: // an error before a command begins is an error of the command line
		fmt.Fprintf(out, "weir: %s\nTry %q.\n", shown(err), c.CommandPath()+" --help")
		return statusUsage
	case errors.As(err, &said):
	case errors.As(err, &wrong): // each line begins with its position
		fmt.Fprintln(out, shown(wrong))
	default:
		fmt.Fprintf(out, "weir: %s\n", shown(err))
	}
	if errors.As(err, &exit) { // "weir soak" has more exit statuses
		return exit.ExitStatus()
	}
	return statusError
}
