package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/api"
	writer "github.com/weirproxy/weir/config/kube/control"
	"github.com/weirproxy/weir/config/kube/event"
)

// control does the work of weir in a cluster except reading: events, the status of
// Ingresses, Leases. Each watched cluster has its own control.
type control interface {
	// InEffect reports the file and the objects that took effect. The caller holds change
	// and calls it for each change of routes, in order. It must not wait.
	InEffect(file *config.Config, r *kube.Routing)
	// Leave gives up the Leases of this replica, because it drains or no longer serves
	// the cluster. It calls wrote after each removed address. It returns at most a second
	// after ctx has ended, whose cause it reports if it could not write everything. No
	// method is called after it.
	Leave(ctx context.Context, wrote func())
	// Release is Leave when another process takes over: it removes no address.
	Release(ctx context.Context)
}

// newControl starts the control of the cluster that file names. It returns nil if weir
// has nothing to write there.
func (s *server) newControl(file *config.Config) (control, error) {
	client, err := api.Connect(file.Kubernetes.Kubeconfig)
	if err != nil {
		return nil, err
	}
	r := &replica{s: s, client: client}
	client.Answered = func() {
		if source := r.source.Load(); source != nil {
			source.Retry().Answered()
		}
	}
	return r, nil
}

// leaveLease limits the time in which weir gives up its old Lease after it has changed to
// another Lease.
const leaveLease = 10 * time.Second

// replica is this replica of weir. Other replicas may serve the same cluster.
type replica struct {
	s      *server
	client *api.Client
	source atomic.Pointer[kube.Source]

	lease    config.ObjectName
	formerly []config.ObjectName // earlier names of the Lease
	writer   *writer.Control     // nil before the first objects take effect
}

// InEffect implements control.
func (r *replica) InEffect(file *config.Config, routing *kube.Routing) {
	r.source.Store(r.s.cluster.source)
	if lease := leaseOf(file.Kubernetes, r.client.Namespace); r.writer == nil || r.lease != lease {
		if r.writer != nil {
			r.handOver(file, routing)
		}
		r.lease, r.writer = lease, r.newWriter(lease)
	}
	w := writer.Wanted{Publish: file.Kubernetes.Publish, Node: file.Node, Ingresses: routing.Ingresses}
	if g := routing.Gateways; g != nil {
		w.Gateways, w.Controller, w.Replicas = g.Status, file.Kubernetes.Gateways.Controller, g.Replicas
	}
	for _, e := range event.Spread(routing.Events) {
		w.Events = append(w.Events, writer.Event{Object: e.Object, Reason: string(e.Reason), Message: e.Message, Served: e.InPassing()})
	}
	r.writer.Want(w)
}

// handOver ends a writer that is followed by another writer with another Lease. Ingresses
// that the other writer also publishes keep their addresses.
func (r *replica) handOver(file *config.Config, routing *kube.Routing) {
	if !slices.Contains(r.formerly, r.lease) {
		r.formerly = append(r.formerly, r.lease)
	}
	var kept []config.ObjectName
	if file.Kubernetes.Publish.Any() {
		kept = routing.Ingresses
	}
	before := r.writer
	go func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), leaveLease, fmt.Errorf("weir gives its former Lease up after %v", leaveLease))
		defer cancel()
		before.HandOver(ctx, kept)
	}()
}

// Leave implements control.
func (r *replica) Leave(ctx context.Context, wrote func()) {
	if r.writer != nil {
		r.writer.Leave(ctx, wrote)
	}
}

// Release implements control.
func (r *replica) Release(ctx context.Context) {
	if r.writer != nil {
		r.writer.Release(ctx)
	}
}

func (r *replica) newWriter(lease config.ObjectName) *writer.Control {
	log := r.s.log.With(zap.Stringer("lease", lease))
	return writer.New(writer.Options{
		Client: r.client, Retry: r.source.Load().Retry(), Lease: lease, Formerly: slices.Clone(r.formerly), Holder: holder(), Metrics: r.s.written,
		Ingresses: func() []*networkingv1.Ingress { return r.source.Load().Ingresses() }, Gateways: gatewayObjects{r},
		Leading: func(on bool) {
			if on {
				log.Info("this replica is the leader: it writes events and statuses")
			} else {
				log.Info("this replica is no longer the leader")
			}
		},
		Trouble: func(what string, err error) {
			if err != nil {
				log.Warn("weir cannot write to the cluster; it still serves everything", zap.String("what", what), zap.Error(err))
			} else {
				log.Info("weir can write to the cluster again", zap.String("what", what))
			}
		},
	})
}

// gatewayObjects are the objects of the Gateway API of the Source in use.
type gatewayObjects struct{ r *replica }

func (g gatewayObjects) GatewayObject(kind string, name config.ObjectName) (metav1.Object, string) {
	return g.r.source.Load().GatewayObject(kind, name)
}

func (g gatewayObjects) EachGatewayObject(f func(string, metav1.Object)) {
	g.r.source.Load().EachGatewayObject(f)
}

// holder identifies this process in the Leases of clusters. The name begins with the Pod,
// or else the host, so that people can find it; the rest makes it unique.
func holder() string {
	host, _ := os.Hostname()
	host = cmp.Or(os.Getenv("POD_NAME"), host, "weir")
	return fmt.Sprintf("%s_%s", host, strings.ToLower(rand.Text()[:10]))
}

// leaseOf returns the Lease by which all replicas of an installation agree which of them
// writes. Installations that serve other Ingresses have another Lease, unless the
// configuration sets the same one.
func leaseOf(k *config.Kubernetes, namespace string) config.ObjectName {
	if k.Lease != (config.ObjectName{}) {
		return k.Lease
	}
	name := "weir"
	switch {
	case k.Class != "":
		name += "-" + k.Class
	case k.Controller != config.DefaultController:
		name += "-" + nameLike(k.Controller)
	}
	selected := selectionOf(k)
	name = strings.TrimRight(name[:min(len(name), 253-len(selected))], "-.") + selected
	return config.ObjectName{Namespace: cmp.Or(namespace, "default"), Name: name}
}

// selectionOf is the end of the Lease's name if weir serves only some namespaces: an
// installation that serves other namespaces has its own Lease. Empty: weir serves all
// namespaces.
func selectionOf(k *config.Kubernetes) string {
	kind, all := "namespaces", slices.Clone(k.Namespaces)
	for _, l := range k.NamespaceLabels {
		kind, all = "namespace_labels", append(all, l.String())
	}
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	sum := sha256.Sum256([]byte(kind + "\x00" + strings.Join(slices.Compact(all), "\x00")))
	return fmt.Sprintf("-%x", sum[:4])
}

// nameLike makes a valid name for an object from any text.
func nameLike(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(s))
	return strings.Trim(s, "-")
}
