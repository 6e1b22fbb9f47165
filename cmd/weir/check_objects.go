package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/cache"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
)

// checkPatience limits how long check waits for the objects of a cluster.
const checkPatience = 30 * time.Second

// listing returns how objects of a kind are listed and watched.
type listing func(kube.Kind, kube.Selection) *cache.ListWatch

// checkCluster checks the objects of the cluster that the file names.
func checkCluster(c *cobra.Command, file *config.Config) error {
	if file.Kubernetes == nil {
		return errors.New("--cluster needs a configuration with a section kubernetes, and this one has none")
	}
	client, err := kube.Connect(file.Kubernetes)
	if err != nil {
		return err
	}
	return checkObjects(c, file, client.List)
}

// checkObjects reads the objects of the cluster once, and prints their configuration.
func checkObjects(c *cobra.Command, cfg *config.Config, list listing) error {
	ch, err := readObjects(cfg, list)
	if err != nil {
		return err
	}
	merged := ch.Routing.MergeWith(cfg, ch.Backends)
	c.OutOrStdout().Write(file.EffectiveBeside(merged, cfg))
	for _, e := range ch.Routing.Events {
		fmt.Fprintf(c.ErrOrStderr(), "%s %s: warning: %s\n", e.Object.Kind, nameOf(e), e.Message)
	}
	fmt.Fprintf(c.OutOrStdout(), "# cluster: %s, %s, %s, %s\n", ingresses(len(ch.Routing.Ingresses)),
		count(len(ch.Routing.Routes), "route"), count(len(ch.Routing.Backends), "backend"), count(len(ch.Routing.Events), "warning"))
	return nil
}

func nameOf(e event.Event) string {
	return strings.TrimPrefix(e.Object.Namespace+"/"+e.Object.Name, "/")
}

func ingresses(n int) string {
	if n == 1 {
		return "1 Ingress"
	}
	return fmt.Sprintf("%d Ingresses", n)
}

// readObjects lists the objects, and waits until all of them are known.
func readObjects(file *config.Config, list listing) (kube.Change, error) {
	found := make(chan kube.Change, 1)
	var last atomic.Pointer[error]
	last.Store(new(errors.New("the API server does not answer")))
	ctx, cancel := context.WithTimeout(context.Background(), checkPatience)
	defer cancel()
	source, err := kube.NewSource(kube.Options{File: file, List: list,
		Changed: func(ch kube.Change) {
			select {
			case found <- ch:
			default:
			}
			cancel()
		},
		Trouble: func(_ kube.Kind, err error) { last.Store(&err) }})
	if err != nil {
		return kube.Change{}, err
	}
	source.Run(ctx)
	select {
	case ch := <-found:
		return ch, nil
	default:
		return kube.Change{}, fmt.Errorf("weir could not read the objects of the cluster within %v: %w", checkPatience, *last.Load())
	}
}
