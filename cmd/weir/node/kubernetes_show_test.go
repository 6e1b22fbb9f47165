package node

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/gateway"
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
	e := &inEffect{file: fromFile, config: &all}
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
	if got.Reset(); c.writeObjects(&got, &inEffect{file: fromFile, config: fromFile}) != nil || got.Len() > 0 {
		t.Errorf("without objects it is\n%s", &got)
	}
	if c.writeObjects(broken{}, e) == nil {
		t.Error("a broken connection is no error")
	}
}

// broken is a connection whose client is gone.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("the client is gone") }

// A Gateway has a listener for each of its addresses. Its routes stay on the addresses on which weir
// can listen.
func TestRoutesStayOnOtherListeners(t *testing.T) {
	both, one, other := &config.Route{Name: "both", Listeners: []string{"first", "second"}}, &config.Route{Name: "one", Listeners: []string{"first"}}, &config.Route{Name: "other", Listeners: []string{"second"}}
	routes := []*config.Route{both, one, other}
	p := &plan{objects: &objects{unbound: map[string]error{}}, cfg: &config.Config{Listeners: []config.Listener{config.NewListener("first"), config.NewListener("second")}, Routes: routes}}
	p.withoutListener("first", errors.New("no such address"))
	got := ""
	for _, r := range p.cfg.Routes {
		got += fmt.Sprint(r.Name, r.Listeners, " ")
	}
	if want := "both[second] other[second] "; got != want || len(p.cfg.Listeners) != 1 {
		t.Errorf("the routes are %s on %d listeners, not %s", got, len(p.cfg.Listeners), want)
	}
	programmed := []metav1.Condition{{Type: "Programmed", Status: "True", Reason: "Programmed"}}
	l := config.NewListener("gateway/a/edge/8080/192.0.2.1")
	l.Address = "192.0.2.1:8080"
	o := &objects{routing: &kube.Routing{Gateways: &kube.GatewayRouting{Listeners: []config.Listener{l}, Status: []*gateway.Status{{Gateways: []gateway.GatewayStatus{
		{Key: gateway.Key{Kind: gateway.KindGateway, ObjectName: config.ObjectName{Namespace: "a", Name: "edge"}, UID: "u"}, GatewayStatus: gatewayv1.GatewayStatus{
			Conditions: programmed, Listeners: []gatewayv1.ListenerStatus{{Name: "web", Conditions: programmed}}}, Made: map[gatewayv1.SectionName]gateway.Made{"web": {Listeners: []string{l.Name}}}}}}}}}}
	if o.inEffect(nil, nil) != o.routing {
		t.Error("everything is bound, and the routing is another one")
	}
	o.unbound = map[string]error{l.Name: errors.New("no such address")}
	inEffect := o.inEffect(nil, nil)
	e := inEffect.Events[0]
	for _, c := range []metav1.Condition{inEffect.Gateways.Status[0].Gateways[0].Conditions[0], inEffect.Gateways.Status[0].Gateways[0].Listeners[0].Conditions[0]} {
		if c.Status != "False" || c.Message != e.Message {
			t.Errorf("weir cannot listen, and a condition is %+v", c)
		}
	}
	if programmed[0].Status != "True" {
		t.Error("the status of the routing has changed")
	}
	if e.Object.Kind != "Gateway" || e.Object.Namespace != "a" || e.Object.Name != "edge" || e.Object.UID != "u" || !strings.Contains(e.Message, "port 8080 of 192.0.2.1,") {
		t.Errorf("the event is about %v: %s", e.Object, e.Message)
	}
	if got := o.portOf(l.Name); got != "an address of a Gateway" {
		t.Errorf("the log says %s", got)
	}
	if len(both.Listeners) != 2 || routes[1] != one || p.cfg.Routes[1] != other {
		t.Error("the routes of the objects have changed")
	}
}
