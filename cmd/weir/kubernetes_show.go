package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
)

// builtIn is the name of a configuration without a file.
const builtIn = "(built in)"

// withoutFileText is the configuration in a Pod without a configuration file.
const withoutFileText = `
listeners:
  web: {address: ":80", protocol: http}
  websecure: {address: ":443", protocol: tls}
health: {address: ":8086"}
access_log: {}
`

// withoutFile returns the configuration of a Pod in namespace that has no configuration
// file. NODE_NAME, if set, must come from the downward API.
func withoutFile(namespace string, env func(string) (string, bool)) (*config.Config, error) {
	text := withoutFileText + "kubernetes: {"
	if namespace != "" {
		text += "operator_namespaces: [" + namespace + "]"
	}
	text += "}\n"
	if name, ok := env("NODE_NAME"); ok && name != "" {
		text += "node: ${NODE_NAME}\n"
	}
	return config.Parse(builtIn, []byte(text), env)
}

// objectsStatus is the answer to GET /kubernetes.
type objectsStatus struct {
	Synced   bool      `json:"synced"`
	LastSync time.Time `json:"last_sync,omitzero"`
	// Trouble is the reason why weir cannot watch the cluster at the moment.
	Trouble string                           `json:"trouble,omitempty"`
	Leaving []string                         `json:"node_leaving,omitempty"`
	Objects map[kube.Kind]map[kube.State]int `json:"objects"`
	Faults  []fault                          `json:"faults"`
}

// fault is an error of an object.
type fault struct {
	Kind    string       `json:"kind"`
	Object  string       `json:"object"`
	UID     types.UID    `json:"uid,omitempty"`
	Reason  event.Reason `json:"reason"`
	Message string       `json:"message"`
}

func faultsOf(events []event.Event) []fault {
	all := []fault{}
	for _, e := range events {
		all = append(all, fault{e.Object.Kind, nameOf(e), e.Object.UID, e.Reason, e.Message})
	}
	return all
}

func (s *server) showObjects(w http.ResponseWriter, _ *http.Request) {
	c := s.current()
	if c == nil {
		http.Error(w, "weir serves no cluster: the configuration has no section kubernetes", http.StatusNotFound)
		return
	}
	st := objectsStatus{Synced: c.source.HasSynced(), LastSync: c.source.LastSync(), Leaving: s.node.State().Leaving,
		Objects: c.source.Objects(), Faults: faultsOf(*c.faults.Load())}
	if err := c.trouble.last(); err != nil {
		st.Trouble = err.Error()
	}
	writeJSON(w, st)
}

// effectiveObjects returns the configuration that weir made from the objects of the cluster,
// as comments: the text loads without them, and the cluster adds them.
func (s *server) effectiveObjects(e *inEffect) []byte {
	if e.file.Kubernetes == nil {
		return nil
	}
	cfg := *e.config
	backends := cfg.Backends
	cfg.Backends = make([]config.Backend, len(backends))
	for i := range backends { // endpoints change without a change of the configuration
		cfg.Backends[i] = backends[i]
		if b := s.backends.Backend(backends[i].Name); b != nil {
			cfg.Backends[i].Endpoints = b.Settings().Endpoints
		}
	}
	return commented("The configuration generated from the cluster, besides the above:", cfg.EffectiveBeside(e.file))
}

func commented(title string, text []byte) []byte {
	if len(text) == 0 {
		return nil
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "\n# %s\n", title)
	for line := range bytes.Lines(text) {
		b.WriteString("# ")
		b.Write(line)
	}
	return b.Bytes()
}

// checkPatience limits how long check waits for the objects of a cluster.
const checkPatience = 30 * time.Second

// checkObjects reads the objects of the cluster once, and prints their configuration.
func checkObjects(c *cobra.Command, file *config.Config, connect func(*config.Kubernetes) (listing, error)) error {
	if file.Kubernetes == nil {
		return errors.New("--cluster needs a configuration with a section kubernetes, and this one has none")
	}
	list, err := connect(file.Kubernetes)
	if err != nil {
		return err
	}
	ch, err := readObjects(file, list)
	if err != nil {
		return err
	}
	cfg := ch.Routing.Merge(file, ch.Endpoints)
	c.OutOrStdout().Write(cfg.EffectiveBeside(file))
	for _, f := range faultsOf(ch.Routing.Events) {
		fmt.Fprintf(c.ErrOrStderr(), "%s %s: warning: %s\n", f.Kind, f.Object, f.Message)
	}
	fmt.Fprintf(c.OutOrStdout(), "# cluster: %s, %s, %s, %s\n", ingresses(len(ch.Routing.Ingresses)),
		count(len(ch.Routing.Routes), "route"), count(len(ch.Routing.Backends), "backend"), count(len(ch.Routing.Events), "warning"))
	return nil
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
	var last troubles
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
		Trouble: last.note})
	if err != nil {
		return kube.Change{}, err
	}
	source.Run(ctx)
	select {
	case ch := <-found:
		return ch, nil
	default:
		return kube.Change{}, fmt.Errorf("weir could not read the objects of the cluster within %v: %w", checkPatience,
			cmp.Or(last.last(), errors.New("the API server does not answer")))
	}
}
