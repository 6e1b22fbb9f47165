package node

import (
	"bytes"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
)

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
	return commented("The configuration generated from the cluster, besides the above:", file.EffectiveBeside(&cfg, e.file))
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
