package e2e

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// gate is a proxy between weir and pebble. It does what pebble cannot: it fails, answers late, and asks for
// the renewal of certificates.
type gate struct {
	t       *testing.T
	address string
	broken  atomic.Bool  // every answer is 500
	asked   atomic.Int64 // attempts to make an order

	lock   sync.Mutex
	orders chan struct{}   // closed while orders pass
	due    map[string]bool // certificates to renew now, by serial number in hexadecimal
}

// newGate starts a gate in front of p. From then on, weir reaches p only through the gate. If held is true,
// orders wait until openOrders is called.
func newGate(t *testing.T, p *pebble, held bool) *gate {
	t.Helper()
	g := &gate{t: t, address: freePort(t), orders: make(chan struct{}), due: map[string]bool{}}
	if !held {
		g.openOrders()
	}
	cert, err := tls.LoadX509KeyPair(p.own.cert, p.own.key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		t.Fatal(err)
	}
	target := &url.URL{Scheme: "https", Host: p.address}
	proxy := &httputil.ReverseProxy{
		// The Host header stays: pebble builds its URLs from it.
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = r.In.Host },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext},
	}
	server := &http.Server{Handler: g.handler(proxy), TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	go server.ServeTLS(l, "", "")
	t.Cleanup(func() { server.Close() })
	p.address, p.direct = g.address, p.address
	return g
}

// openOrders lets orders pass.
func (g *gate) openOrders() { close(g.pass()) }

// holdOrders makes orders wait again.
func (g *gate) holdOrders() {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.orders = make(chan struct{})
}

// pass returns a channel that is closed when orders pass.
func (g *gate) pass() chan struct{} {
	g.lock.Lock()
	defer g.lock.Unlock()
	return g.orders
}

func (g *gate) handler(pebble http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/order-plz") {
			g.asked.Add(1)
			// The handler reads the body first, because otherwise the server does not notice when weir ends.
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			select {
			case <-g.pass():
			case <-r.Context().Done():
				return
			}
		}
		_, id, isInfo := strings.Cut(r.URL.Path, "/renewalInfo/")
		switch {
		case g.broken.Load():
			http.Error(w, "out of order", http.StatusInternalServerError)
		case isInfo:
			g.info(w, id)
		default:
			pebble.ServeHTTP(w, r)
		}
	})
}

// info answers a renewal query (RFC 9773): renew now, or tomorrow; ask again in a second.
func (g *gate) info(w http.ResponseWriter, id string) {
	_, number, _ := strings.Cut(id, ".")
	serial, err := base64.RawURLEncoding.DecodeString(number)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	start := time.Now().Add(24 * time.Hour)
	if g.isDue(strings.TrimLeft(fmt.Sprintf("%x", serial), "0")) {
		start = time.Now().Add(-2 * time.Hour)
	}
	start = start.UTC().Truncate(time.Hour) // each answer has the same window
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	json.NewEncoder(w).Encode(map[string]any{"suggestedWindow": map[string]any{"start": start, "end": start.Add(time.Hour)}})
}

func (g *gate) isDue(serial string) bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	return g.due[serial]
}

// renew asks weir to renew the certificate with this serial number now.
func (g *gate) renew(serial string) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.due[serial] = true
}
