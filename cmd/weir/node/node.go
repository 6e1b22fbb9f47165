// Package node is the running weir as a whole. It connects all parts, puts configurations
// into effect, serves the health, metrics and admin ports, writes the logs, drains, and
// drops privileges. The commands in cmd/weir start it.
package node

import (
	"errors"
	"os"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
)

// Build identifies the binary in logs, metrics and the answers of the admin port.
type Build struct {
	Version  string // such as v1.2.3
	Revision string // the commit
}

// Node is a weir within a process that also does other things: it hears no signals, watches
// no files and drops no privileges. Run is weir as a process of its own.
type Node struct{ s *server }

// New makes a node that serves nothing yet. Its log goes to standard error, in the format
// and from the level that the configuration names. The caller must call End.
func New(c config.Log, build Build) *Node {
	level := zap.NewAtomicLevel()
	setLevel(level, c)
	return &Node{newServer(newLog(c, level, isTerminal(os.Stderr)), level, build)}
}

// Apply puts a configuration into effect: the first one or another one. On an error the
// previous configuration stays in effect. Only one goroutine may call Apply and End at a
// time.
func (n *Node) Apply(file *config.Config) error { return n.s.apply(file) }

// End ends the node at once, and aborts active requests and tunnels. No method may be
// called after it.
func (n *Node) End() error {
	if n.s.configInEffect() == nil {
		n.s.close()
		return nil
	}
	now := make(chan struct{})
	close(now)
	if err := n.s.shutdown(now); err != nil && !errors.Is(err, errCutNow) {
		return err
	}
	return nil
}
