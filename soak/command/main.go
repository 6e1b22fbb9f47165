package command

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/soak"
)

// Main runs root, a command from New, with args. It prints its error and returns the exit
// status.
func Main(ctx context.Context, root *cobra.Command, args []string, out, errOut io.Writer) int {
	begun := false
	run := root.RunE
	root.RunE = func(c *cobra.Command, args []string) error {
		begun = true
		return run(c, args)
	}
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	var exit *soak.ExitError
	switch {
	case err == nil:
		return soak.StatusOK
	case !begun:
		fmt.Fprintf(errOut, "%s: %v\nTry %q.\n", root.Name(), err, root.Name()+" --help")
		return soak.StatusUsage
	}
	fmt.Fprintf(errOut, "%s: %v\n", root.Name(), err)
	if errors.As(err, &exit) {
		return exit.Status
	}
	return soak.StatusFailed
}
