package node

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/pause"
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

// writeObjects writes the configuration that weir made from the objects of the cluster, as
// comments: the text loads without them, and the cluster adds them. It writes a few items at
// a time, because all of them together take many times the memory of the configuration.
func (s *server) writeObjects(w io.Writer, e *inEffect) error {
	if e.file.Kubernetes == nil {
		return nil
	}
	out := &comment{w: w, title: "The configuration generated from the cluster, besides the above:"}
	for text := range s.objectsInParts(e) {
		if _, err := out.Write(text); err != nil {
			return err
		}
		pause.Tidy(pause.LeftGarbage)
	}
	return nil
}

// itemsAtOnce is the number of routes, backends or certificates in one part of GET /config.
const itemsAtOnce = 50

// objectsInParts yields the text of EffectiveBeside in parts of a few items.
func (s *server) objectsInParts(e *inEffect) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		from := *e.config // without the items of the part that comes next
		from.Certificates, from.Listeners, from.HeaderPolicies = nil, e.file.Listeners, e.file.HeaderPolicies
		from.TLSPolicies = e.file.TLSPolicies
		part := *e.config
		part.Certificates = nil
		if text := file.EffectiveBeside(&part, &from); len(text) > 0 && !yield(text) {
			return
		}
		from.Listeners, from.HeaderPolicies, from.TLSPolicies = e.config.Listeners, e.config.HeaderPolicies, e.config.TLSPolicies
		lists := []iter.Seq[[]byte]{
			inParts(0, len(e.config.Certificates), nil, func(i, j int) []byte {
				part := from
				part.Certificates = e.config.Certificates[i:j]
				return file.EffectiveBeside(&part, &from)
			}),
			inParts(len(e.file.Routes), len(e.config.Routes), e.sameRoute, func(i, j int) []byte {
				before, part := from, from
				before.Routes, part.Routes = e.config.Routes[:i], e.config.Routes[:j]
				return file.EffectiveBeside(&part, &before)
			}),
			inParts(len(e.file.Backends), len(e.config.Backends), nil, func(i, j int) []byte {
				before, part := from, from
				before.Backends, part.Backends = nil, s.withEndpoints(e.config.Backends[i:j])
				return file.EffectiveBeside(&part, &before)
			}),
		}
		for _, list := range lists {
			for text := range list {
				if !yield(text) {
					return
				}
			}
		}
	}
}

// sameRoute reports whether the Routes i and i+1 are shown as one.
func (e *inEffect) sameRoute(i int) bool { return e.config.Routes[i].Name == e.config.Routes[i+1].Name }

// inParts yields the texts of the items from i to end, a few at a time. text returns the text
// of some items, below their key; only the first part keeps the line of the key. together
// reports whether an item belongs into one part with the next; nil: none does.
func inParts(i, end int, together func(int) bool, text func(i, j int) []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		begun := false
		for i < end {
			j := min(i+itemsAtOnce, end)
			for together != nil && j < end && together(j-1) {
				j++
			}
			part := text(i, j)
			i = j
			if len(part) == 0 {
				continue
			}
			if begun {
				_, part, _ = bytes.Cut(part, []byte("\n"))
			}
			begun = true
			if !yield(part) {
				return
			}
		}
	}
}

// withEndpoints returns the backends with their current endpoints, which change without a
// change of the configuration.
func (s *server) withEndpoints(backends []*config.Backend) []*config.Backend {
	all := slices.Clone(backends)
	for i, cfg := range all {
		if b := s.backends.Backend(cfg.Name); b != nil {
			own := *cfg
			own.Endpoints = b.Settings().Endpoints
			all[i] = &own
		}
	}
	return all
}

// comment writes lines as comments below a title, which it writes before the first line.
type comment struct {
	w     io.Writer
	title string
	begun bool
}

// Write writes whole lines.
func (c *comment) Write(lines []byte) (int, error) {
	var b bytes.Buffer
	if !c.begun {
		c.begun = true
		fmt.Fprintf(&b, "\n# %s\n", c.title)
	}
	for line := range bytes.Lines(lines) {
		b.WriteString("# ")
		b.Write(line)
	}
	if _, err := c.w.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(lines), nil
}
