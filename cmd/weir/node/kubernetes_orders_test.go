package node

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/tls/acme"
)

// toldOf is a control that, for each change, at once sends a request to each host and connects to each port.
type toldOf struct {
	*clustered
	asked map[string]bool // guarded by server.change
}

func (a *toldOf) InEffect(_ *config.Config, r *kube.Routing) {
	for _, route := range r.Routes {
		for _, host := range route.Hosts {
			a.asked[host] = true
			a.now(host, "/", 503)
		}
	}
	for _, l := range r.Listeners {
		a.asked[l.Name] = true
		conn, err := net.Dial("tcp", "127.0.0.1"+l.Address[strings.LastIndexByte(l.Address, ':'):])
		if errors.Is(err, syscall.ECONNRESET) {
			continue // weir has accepted and closed it already
		}
		if err != nil {
			a.t.Errorf("%s: %v", l.Name, err)
			continue
		}
		conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) { // weir closes it: there is no Pod
			a.t.Errorf("%s serves nobody: %v", l.Name, err)
		}
		conn.Close()
	}
}

func isTimeout(err error) bool {
	var of net.Error
	return errors.As(err, &of) && of.Timeout()
}

// A change is reported, and so may be written into a status, only when the data path serves it: its routes, and its
// listeners.
func TestChangesAreServedBeforeTold(t *testing.T) {
	c := newClustered(t, shop, "web", "raw")
	a := &toldOf{clustered: c, asked: map[string]bool{}}
	c.begin = func(*config.Config) (control, error) { return a, nil }
	c.load(strings.Replace(beside, "class: weir", "class: weir, tcp: {config_map: default/tcp}", 1))
	for i := range 20 {
		name := fmt.Sprint("app", i)
		c.put(strings.ReplaceAll(shop, "shop", name))
		c.until(name+".example", "/", 503)
	}
	_, port, _ := net.SplitHostPort(c.address("raw"))
	c.put(`{apiVersion: v1, kind: ConfigMap, metadata: {name: tcp}, data: {"` + port + `": default/shop:80}}`)
	eventually(t, "all hosts and the port are told of", func() error {
		c.change.Lock()
		defer c.change.Unlock()
		if len(a.asked) != 22 {
			return fmt.Errorf("these are: %v", a.asked)
		}
		return nil
	})
}

// The orders of certificates for Gateways are told with their failures. While weir cannot know yet whether there is
// a certificate, their state is unknown, but not for long.
func TestOrdersOfGateways(t *testing.T) {
	c := newClustered(t, "", "web")
	c.load(beside)
	of := &cluster{s: c.server}
	public := &config.ACMEIssuer{Name: "public"}
	entry := func(host string) config.Certificate {
		return config.Certificate{ACME: &config.ACME{Directory: "https://ca.test/dir", Hosts: []string{host}, Owner: "gateway/a/" + host, Issuer: public}}
	}
	r := &kube.GatewayRouting{Certificates: []config.Certificate{entry("a.test"), {Pair: &config.Pair{}}, entry("b.test")}}
	want := func(what, a, b string, unknown bool) {
		t.Helper()
		got := of.orders(r)
		for host, failure := range map[string]string{"a.test": a, "b.test": b} {
			o := gateway.Order{Issuer: "public", Host: host, Failure: failure, Unknown: unknown && failure == ""}
			if got["gateway/a/"+host] != o || len(got) != 2 {
				t.Errorf("%s: the orders are %+v", what, got)
			}
		}
	}
	c.orderWithin = time.Hour
	want("at the start", "", "", true)
	c.issuing.note(acme.Event{Kind: acme.Failed, Name: "a.test", Directory: "https://ca.test/dir", Err: errors.New("no")})
	c.issuing.note(acme.Event{Kind: acme.Failed, Name: "b.test", Directory: "https://other.test/dir", Err: errors.New("no")})
	want("after a failure", "no", "", true)
	c.orderWithin = 0
	want("after some time", "no", "", false)
	c.issuing.note(acme.Event{Kind: acme.StorageError, Name: "a.test", Directory: "https://ca.test/dir", Err: errors.New("redis://secret@db: refused")})
	c.issuing.note(acme.Event{Kind: acme.Waiting, Name: "b.test", Directory: "https://ca.test/dir"})
	want("errors of the storage are for the operator", "the certificate storage of weir does not work", errEarlier.Error(), false)
	if got := of.orders(&kube.GatewayRouting{}); len(got) != 0 || of.orders(nil) != nil || of.ordered.since != nil {
		t.Errorf("without orders there are %+v, since %v", got, of.ordered.since)
	}
	c.orderWithin = time.Hour
	c.issuing.note(acme.Event{Kind: acme.Found, Name: "b.test", Directory: "https://ca.test/dir"})
	if o := of.orders(r)["gateway/a/b.test"]; !o.Unknown {
		t.Errorf("a new order is %+v", o)
	}
	for _, e := range []struct {
		event acme.Event
		want  string
	}{{acme.Event{}, ""}, {acme.Event{Kind: acme.StorageError, Err: errors.New("no")}, ""}, {acme.Event{Kind: acme.Failed, Err: errors.New("no")}, "no"}} {
		if got := failureOf(e.event, time.Now()); got != e.want {
			t.Errorf("with a certificate, %+v is told as %q", e.event, got)
		}
	}
	routing := &kube.Routing{Gateways: r}
	if of.withOrders(&kube.Routing{}).Gateways != nil || of.withOrders(routing) == routing || routing.Gateways != r {
		t.Error("the routing is the same, or has changed")
	}
}
