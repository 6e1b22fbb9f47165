package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

// A reload removes a listener. weir serves each of its open connections once more, however long it was idle
// and however many reloads follow. A client that is just using its connection loses no request.
func TestIdleClientsOfARemovedListener(t *testing.T) {
	t.Parallel()
	needLinux(t) // connections are parked only on Linux
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["app"] = app.address
	stay := strings.Replace(http2Config, "listeners:\n", "listeners:\n  stay: {address: '@stay', protocol: http}\n", 1)
	stay = strings.ReplaceAll(stay, "[web, secure]", "[stay, web, secure]")
	w.start(stay)
	type client struct {
		net.Conn
		r *bufio.Reader
	}
	var old []client
	for _, c := range []net.Conn{dial(t, w.at("web")), tls.Client(dial(t, w.at("secure")), anyCertificate("app.example.org")),
		dial(t, w.at("web")), tls.Client(dial(t, w.at("secure")), anyCertificate("app.example.org"))} {
		old = append(old, client{c, bufio.NewReader(c)})
		if resp, _, err := ask(c, old[len(old)-1].r, "GET", "app.example.org", "/"); err != nil || resp.StatusCode != 200 || resp.Close {
			t.Fatalf("%v, %v", resp, err)
		}
	}
	var told []*h2conn
	for _, listener := range []string{"web", "secure"} {
		h := dialH2(t, w, listener)
		h.get(1)
		if status, _, err := h.answer(1); err != nil || status != "200" {
			t.Fatalf("%s, %v", status, err)
		}
		told = append(told, h)
	}
	eventually(t, "all are parked", func() error {
		if w.metric("weir_connections_parked", "listener", "web")+w.metric("weir_connections_parked", "listener", "secure") != 6 {
			return errNotYet
		}
		return nil
	})
	var gone []string
	for line := range strings.Lines(stay) {
		if !strings.HasPrefix(line, "  web:") && !strings.HasPrefix(line, "  secure:") {
			gone = append(gone, line)
		}
	}
	without := strings.ReplaceAll(strings.Join(gone, ""), "[stay, web, secure]", "[stay]")
	w.reload(without)
	for _, h := range told {
		h.get(3) // the client may not know yet that the connection ends
		if status, _, err := h.answer(3); (err != nil || status != "200") && !errors.Is(err, io.EOF) {
			t.Errorf("HTTP/2: %s, %v", status, err)
		}
		if how := h.toTheEnd(); how.err != io.EOF {
			t.Errorf("HTTP/2 ends with %v", how)
		}
	}
	for i, limits := range []string{"limits: {pending: 4001}\n", "limits: {pending: 4002}\n"} {
		w.reload(without + limits)
		for _, c := range old[2*i:][:2] {
			resp, _, err := ask(c, c.r, "GET", "app.example.org", "/")
			if err != nil || resp.StatusCode != 200 || !resp.Close {
				t.Errorf("%d reloads later: %v, %v", i+1, resp, err)
				continue
			}
			if _, err := c.r.ReadByte(); err != io.EOF {
				t.Errorf("it ends with %v", err)
			}
		}
	}
}
