package main

import (
	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
)

func newRunCommand() *cobra.Command {
	f := files{inPod: true}
	cmd := &cobra.Command{
		Use:   "run [FILE]",
		Short: "Run weir with a configuration file",
		Long: `Run weir with the configuration in FILE until SIGTERM or Ctrl-C.
` + aboutFiles + `
In a Pod without FILE, weir serves the cluster's Ingresses on ports 80 and 443.

  SIGHUP   loads the file and opens the access log again. weir also loads the file
           when it changes. A file with errors changes nothing.
  SIGUSR2  starts the binary again. The new process takes over the sockets when it
           is ready, and this one ends when its connections have ended.
  SIGTERM  or Ctrl-C drains: the health port answers 503 at once, and weir accepts
           connections for drain.lame_duck. Then all ports close, so that another
           weir can open them, and active requests and tunnels may continue for
           drain.timeout. A second SIGTERM or Ctrl-C ends weir at once.

The exit status is 0 unless weir had to abort active requests or tunnels.`,
		Example:    "  weir run /srv/weir.yaml\n  weir run - < weir.yaml",
		SuggestFor: []string{"start", "serve", "server", "up"},
		Args:       arguments(0, 1, "write one configuration file: weir run FILE"),
		PreRunE:    f.choose,
		RunE:       func(*cobra.Command, []string) error { return node.Run(f.paths[0], build()) },
	}
	f.flags(cmd)
	return cmd
}
