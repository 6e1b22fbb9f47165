package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/config/kube"
)

func newRunCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "run [FILE]",
		Short: "Run weir with a configuration file",
		Long: `Run weir with the configuration in FILE until SIGTERM or Ctrl-C. In a Pod, FILE
is optional: without it weir serves the cluster's Ingresses on ports 80 and 443.

  SIGHUP   loads the file and opens the access log again. weir also loads the file
           when it changes. A file with errors changes nothing.
  SIGUSR2  starts the binary again. The new process takes over the sockets when it
           is ready, and this one ends when its connections have ended.
  SIGTERM  or Ctrl-C drains: the health port answers 503 at once, and weir accepts
           connections for drain.lame_duck. Then all ports close, so that another
           weir can open them, and active requests and tunnels may continue for
           drain.timeout. A second SIGTERM or Ctrl-C ends weir at once.

The exit status is 0 unless weir had to abort active requests or tunnels.`,
		Example: "  weir run /etc/weir/weir.yaml\n  weir run - < weir.yaml",
		Args:    arguments(0, 1, "write one configuration file: weir run FILE"),
		PreRunE: chooseFile(&path),
		RunE:    func(*cobra.Command, []string) error { return node.Run(path, build()) },
	}
	cmd.Flags().StringVarP(&path, "config", "c", "", "configuration `FILE`; - is standard input")
	return cmd
}

// chooseFile takes the file from the argument or from --config. One of them is required,
// unless weir serves the objects of a cluster.
func chooseFile(path *string) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) > 0 && c.Flags().Changed("config"):
			return fmt.Errorf("two configuration files: %s, and %s with --config; write one of them", args[0], *path)
		case len(args) > 0:
			*path = args[0]
		case *path == "" && (c.Flags().Changed("config") || !kube.InPod()):
			return fmt.Errorf("no configuration file; write %s FILE", c.CommandPath())
		}
		return nil
	}
}
