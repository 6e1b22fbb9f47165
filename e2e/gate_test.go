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

// gate stands between weir and pebble, for what pebble cannot be told to do:
// to be out of order, to take its time, and to want certificates renewed now.
type gate struct {
	t       *testing.T
	address string
	broken  atomic.Bool  // every answer is 500
	asked   atomic.Int64 // orders that somebody tried to make
	orders  chan struct{}

	lock sync.Mutex
	due  map[string]bool // serial numbers, in hexadecimal, of certificates to be renewed now
}

// newGate opens a gate to p, and lets p be reached through it alone. With held
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
		// The Host is kept: pebble makes its URLs of it.
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

// openOrders lets orders through.
func (g *gate) openOrders() { close(g.orders) }

func (g *gate) handler(pebble http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/order-plz") {
			g.asked.Add(1)
			// The body first, or the server does not notice when weir ends.
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			select {
			case <-g.orders:
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

// info answers as RFC 9773 has it: now, or tomorrow, and to be asked again in a second.
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
	start = start.UTC().Truncate(time.Hour) // the same window each time
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Retry-After", "1")
	json.NewEncoder(w).Encode(map[string]any{"suggestedWindow": map[string]any{"start": start, "end": start.Add(time.Hour)}})
}

func (g *gate) isDue(serial string) bool {
	g.lock.Lock()
	defer g.lock.Unlock()
	return g.due[serial]
}

// renew wants the certificate with this serial number to be renewed now.
func (g *gate) renew(serial string) {
	g.lock.Lock()
	defer g.lock.Unlock()
	g.due[serial] = true
}
