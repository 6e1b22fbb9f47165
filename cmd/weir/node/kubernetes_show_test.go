package node

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// GET /config writes the objects of a cluster in parts. The text is the same as in one piece. The memory for
// the response depends only on the size of a part.
func TestObjectsAreShownInParts(t *testing.T) {
	const n = 3*itemsAtOnce + 7
	c := newClustered(t, "", "web")
	c.load(beside)
	fromFile := c.fileInEffect()
	all := *fromFile
	all.Listeners = append(all.Listeners[:len(all.Listeners):len(all.Listeners)], config.NewListener("tcp/22"))
	for i := range n {
		name := fmt.Sprintf("a/b%03d", i)
		// Two routes have one name, and appear as one.
		r := config.Route{Name: name, Listeners: []string{"web"}, Hosts: []string{"a.example"}, Backend: name}
		other := r
		other.Hosts = []string{"b.example"}
		all.Routes = append(all.Routes, &r, &other)
		all.Backends = append(all.Backends, new(config.NewBackend(name)))
		all.Certificates = append(all.Certificates, config.Certificate{Pair: &config.Pair{Name: name, Hosts: []string{"a.example"}}})
	}
	all.Routes = append(all.Routes[:5:5], all.Routes[6:]...) // otherwise no part ends between two routes with one name
	e := &inEffect{fromFile, &all}
	parts := 0
	for part := range c.objectsInParts(e) {
		parts++
		if items := max(bytes.Count(part, []byte("\n  - ")), bytes.Count(part, []byte("\n  a/"))); items > itemsAtOnce+1 {
			t.Errorf("a part has %d items", items)
		}
	}
	if want := 1 + 3*4; parts < want || parts > want+4 {
		t.Errorf("there are %d parts", parts)
	}
	var got, want bytes.Buffer
	if err := c.writeObjects(&got, e); err != nil {
		t.Fatal(err)
	}
	want.WriteString("\n# The configuration generated from the cluster, besides the above:\n")
	for line := range bytes.Lines(file.EffectiveBeside(&all, fromFile)) {
		fmt.Fprintf(&want, "# %s", line)
	}
	if !bytes.Equal(got.Bytes(), want.Bytes()) {
		t.Errorf("got\n%s\nwant\n%s", &got, &want)
	}
	if got.Reset(); c.writeObjects(&got, &inEffect{fromFile, fromFile}) != nil || got.Len() > 0 {
		t.Errorf("without objects it is\n%s", &got)
	}
	if c.writeObjects(broken{}, e) == nil {
		t.Error("a broken connection is no error")
	}
}

// broken is a connection whose client is gone.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("the client is gone") }
