package control

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/weirproxy/weir/config/kube/api"
)

// Each replica that serves holds a Lease of its own, which also has the addresses of
// its node. So weir needs no knowledge of Pods, and may run outside of them.

const (
	presentFor = 90 * time.Second
	renewEvery = 30 * time.Second
	// lookEvery is how often a replica reads the addresses of its node.
	lookEvery = 10 * time.Minute

	replicaLabel       = "weirproxy.github.io/replica-of"
	internalAnnotation = "weirproxy.github.io/node-internal"
	externalAnnotation = "weirproxy.github.io/node-external"
)

// replicas is the selector of their Leases.
func (c *Control) replicas() string { return replicaLabel + "=" + hashOf(c.opts.Lease.Name) }

// bePresent holds the Lease of this replica while there is something to publish.
func (c *Control) bePresent(ctx context.Context) {
	bid := api.Bid{Name: "weir-replica-" + hashOf(c.opts.Lease.Name+"\x00"+c.opts.Holder), Holder: c.opts.Holder, Duration: presentFor,
		Labels: map[string]string{replicaLabel: hashOf(c.opts.Lease.Name)}}
	taken := false
	for node := new(nodeLook); ; {
		again := renewEvery
		w, known := c.want()
		if known && w.Publish.Any() {
			before := bid.Annotations
			bid.Annotations = c.nodeAnnotations(ctx, node, w)
			limited, cancel := whole(ctx)
			_, err := c.leases.Take(limited, bid)
			cancel()
			if ctx.Err() == nil {
				c.outcome("renew the Lease of this replica", "", err)
			}
			if err != nil {
				again = tryEvery/2 + rand.N(tryEvery)
			}
			if !taken || !maps.Equal(before, bid.Annotations) {
				wake(c.statuses) // the published addresses may be those of the nodes
			}
			taken = true
		} else if taken {
			c.leases.Drop(ctx, bid)
			taken = false
		}
		if !pause(ctx, again, c.presence) {
			break
		}
	}
	if taken {
		limited, cancel := whole(ctx)
		defer cancel()
		c.leases.Drop(limited, bid) // otherwise it expires
	}
}

// nodeLook is the last look at the node.
type nodeLook struct {
	name        string
	at          time.Time
	annotations map[string]string
}

// nodeAnnotations are the addresses of this replica's node, if addresses of nodes are published.
func (c *Control) nodeAnnotations(ctx context.Context, last *nodeLook, w Wanted) map[string]string {
	if w.Publish.Nodes == "" || w.Node == "" {
		return nil
	}
	if last.name == w.Node && time.Since(last.at) < lookEvery {
		return last.annotations
	}
	node := new(corev1.Node)
	limited, cancel := context.WithTimeout(ctx, api.Timeout)
	defer cancel()
	if err := c.opts.Client.Core.Get().Resource("nodes").Name(w.Node).Do(limited).Into(node); err != nil {
		switch {
		case ctx.Err() != nil:
		case apierrors.IsNotFound(err):
			c.outcome("read the addresses of the node", "", nil)
			c.outcome("find the node", "", fmt.Errorf("the cluster has no node %s, so its addresses are not published; set node from the downward API", w.Node))
		default:
			c.outcome("read the addresses of the node", "", api.Failure("get", "nodes "+w.Node, "", err))
		}
		return last.annotations
	}
	c.outcome("read the addresses of the node", "", nil)
	c.outcome("find the node", "", nil)
	*last = nodeLook{w.Node, time.Now(), map[string]string{
		internalAnnotation: addressesOf(node, corev1.NodeInternalIP), externalAnnotation: addressesOf(node, corev1.NodeExternalIP)}}
	return last.annotations
}

func addressesOf(node *corev1.Node, kind corev1.NodeAddressType) string {
	all := []string{}
	for _, a := range node.Status.Addresses {
		if a.Type == kind {
			all = append(all, a.Address)
		}
	}
	text, _ := json.Marshal(all)
	return string(text)
}

// nodeAddresses are the addresses of all nodes on which replicas run.
func nodeAddresses(replicas []coordinationv1.Lease, kind string) (all []string) {
	annotation := map[string]string{"internal": internalAnnotation, "external": externalAnnotation}[kind]
	for i := range replicas {
		var some []string
		if json.Unmarshal([]byte(replicas[i].Annotations[annotation]), &some) == nil {
			all = append(all, some...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
