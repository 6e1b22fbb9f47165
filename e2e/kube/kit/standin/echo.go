package standin

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The ports on which every Pod serves at its address, whatever its image is. Exceptions are the images of the
// conformance suite of the Gateway API, and an image with "pause" in its name, which serves nothing.
const (
	portHTTP  = "3000" // HTTP/1.1
	portH2C   = "3001" // HTTP/2 without TLS
	portLines = "3022" // sends first, as SSH does, then echoes each line with the Pod's name before it
	portHTTPS = "3443" // HTTP/1.1 and HTTP/2 with a self-signed certificate
)

// certificate returns the certificate that all Pods use for HTTPS.
var certificate = sync.OnceValues(func() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().AddDate(0, 1, 0), DNSNames: []string{"pod.test"}}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
})

// serve starts the servers of a Pod. It returns the functions that stop them.
func (c *cluster) serve(ctx context.Context, p *corev1.Pod, r *pod) (stop []func(), err error) {
	switch image := p.Spec.Containers[0].Image; {
	case strings.Contains(image, "pause"):
		return nil, nil
	case strings.Contains(image, "coredns"):
		return serveDNS(r)
	case isOfSuite(image):
		return c.serveSuite(ctx, p, r)
	}
	pair, err := certificate()
	if err != nil {
		return nil, err
	}
	version := ""
	for _, e := range p.Spec.Containers[0].Env {
		if e.Name == "VERSION" {
			version = e.Value
		}
	}
	echo := answer(p, r, version)
	h2c := new(http.Protocols)
	h2c.SetHTTP1(true)
	h2c.SetUnencryptedHTTP2(true)
	start := map[string]func(net.Listener) func(){
		portHTTP:  web(&http.Server{Handler: echo}),
		portH2C:   web(&http.Server{Handler: echo, Protocols: h2c}),
		portHTTPS: web(&http.Server{Handler: echo, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}}),
		portLines: func(l net.Listener) func() { return lines(l, p.Name) },
	}
	for port, f := range start {
		l, err := net.Listen("tcp", net.JoinHostPort(r.address, port))
		if err != nil {
			stopAll(stop)
			return nil, err
		}
		stop = append(stop, f(l))
	}
	return stop, nil
}

func web(s *http.Server) func(net.Listener) func() {
	s.ReadHeaderTimeout = time.Minute
	return func(l net.Listener) func() {
		if s.TLSConfig != nil {
			go s.ServeTLS(l, "", "")
		} else {
			go s.Serve(l)
		}
		return func() { s.Close() }
	}
}

// answer responds with the name of the Pod and the properties of the request. ?delay=1s delays the response.
func answer(p *corev1.Pod, r *pod, version string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if d, err := time.ParseDuration(q.URL.Query().Get("delay")); err == nil {
			select {
			case <-time.After(d):
			case <-q.Context().Done():
			}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{
			"pod": p.Name, "namespace": p.Namespace, "node": r.node, "version": version, "client": q.RemoteAddr, "tls": q.TLS != nil,
			"path": q.RequestURI, "host": q.Host, "method": q.Method, "proto": q.Proto, "headers": q.Header,
		})
	})
}

// lines greets each client with the Pod's name and the client's address, and then echoes every line.
func lines(l net.Listener, name string) func() {
	return eachConnection(l, func(c net.Conn) {
		fmt.Fprintf(c, "SSH-2.0-standin %s %s\r\n", name, c.RemoteAddr())
		for in := bufio.NewScanner(c); in.Scan(); {
			fmt.Fprintf(c, "%s: %s\n", name, in.Text())
		}
	})
}

// eachConnection calls serve for each connection, which it closes afterwards. It returns the function
// that closes the listener and all connections.
func eachConnection(l net.Listener, serve func(net.Conn)) func() {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			go func() {
				serve(c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			}()
		}
	}()
	return func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for c := range open {
			c.Close()
		}
	}
}
