package listener

import (
	"net"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/park"
)

// woken receives the end of a parked connection's wait.
type woken chan park.Reason

func (w woken) Wake(why park.Reason) { w <- why }

// A parked connection is open, counts as parked, and a drain waits for it.
func TestParkedConnectionsAreCounted(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := serve(t, ln, config.Limits{}, Settings{Policy: NewPolicy(config.HeaderPolicy{Rules: []config.HeaderRule{{From: prefixes("127.0.0.0/8"), Mode: config.HeaderNone}}})})
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := <-w.handled
	c.Established()
	c.SetState(conn.Idle)
	w.want("weir_connections_parked", 0, "test")
	wake := make(woken, 1)
	if !c.Park(wake, time.Time{}) {
		t.Fatal("it cannot be parked")
	}
	w.want("weir_connections_parked", 1, "test")
	w.wantOpen("idle", 1)
	c.Cut()
	if why := <-wake; why != park.Called {
		t.Errorf("woken with %v", why)
	}
	w.want("weir_connections_parked", 0, "test")
	c.Close()
	w.wantOpen("idle", 0)
	w.close()
}
