package main

import (
	"context"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
)

// control is what weir does in a cluster beside reading it: events, the status
// of Ingresses, Leases. There is one for each cluster that is watched.
type control interface {
	// InEffect is told what took effect: of the file and of the objects. It is
	// called for each change of routes, in order, and must not wait.
	InEffect(file *config.Config, r *kube.Routing)
	// Leave gives up what this replica holds (the Lease first), because it drains
	// or serves the cluster no more. It takes no longer than ctx; nothing is called after it.
	Leave(ctx context.Context)
}

// newControl begins the control of the cluster that file names, or returns nil
// where nothing is to be done there.
func (s *server) newControl(file *config.Config) (control, error) { return nil, nil }
