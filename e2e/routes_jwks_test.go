package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

const tokensByURL = `
listeners: {web: {address: '@web', protocol: http}}
auth:
  token: {jwt: {issuer: "https://issuer.test", audience: [shop], keys: 'https://@issuer/keys.json', headers: {sub: X-User}}}
routes:
  - {name: token, listeners: [web], hosts: [guard.shop.test], paths: [/token], auth: token, backend: echo}
backends: {echo: {endpoints: ['@echo']}}
`

// keyServer serves keys by https, with a certificate of an authority of its own.
type keyServer struct {
	document atomic.Pointer[string] // nil: it answers 500
	requests atomic.Int64
}

func (k *keyServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	k.requests.Add(1)
	text := k.document.Load()
	if text == nil || r.URL.Path != "/keys.json" {
		rw.WriteHeader(500)
		return
	}
	fmt.Fprint(rw, *text)
}

func (k *keyServer) set(text string) { k.document.Store(&text) }

// newKeyServer starts the server of the name "issuer", whose authority weir trusts.
func newKeyServer(t *testing.T, w *weir) *keyServer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.dir, "issuer.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	w.env = append(w.env, "SSL_CERT_FILE="+file)
	k, address := new(keyServer), freePort(t)
	l, err := freeport.Listen(address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: k}
	go s.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}))
	t.Cleanup(func() { s.Close() })
	w.address["issuer"] = address
	return k
}

func keyDocument(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","kid":"ec-1","use":"sig","x":%q,"y":%q}]}`,
		base64.RawURLEncoding.EncodeToString(point[1:33]), base64.RawURLEncoding.EncodeToString(point[33:]))
}

// Keys come from an https URL. Without keys the guard refuses; the last good keys outlive reloads,
// outages and documents that weir cannot use.
func TestRouteKeysFromURL(t *testing.T) {
	long(t)
	t.Parallel()
	w := newWeir(t)
	w.address["echo"] = newWebBackend(t, "echo").address
	issuer := newKeyServer(t, w)
	w.start(tokensByURL) // although the server answers 500
	claims := fmt.Sprintf(`{"iss":"https://issuer.test","aud":"shop","sub":"ada","exp":%d}`, time.Now().Add(time.Hour).Unix())
	good := "Authorization: Bearer " + signToken(t, tokenKey, claims)
	status := func() int {
		resp, _ := guarded(t, w, "/token", good)
		return resp.StatusCode
	}
	if got := status(); got != 503 {
		t.Errorf("before the first success: %d", got)
	}
	w.wantMetric(1, "weir_guard_failures_total", "route", "token", "guard", "auth", "reason", "auth_no_keys")
	w.wantMetric(0, "weir_auth_keys_refreshed_timestamp_seconds", "auth", "token")
	issuer.set(keyDocument(t, tokenKey))
	eventually(t, "the keys are in use", func() error {
		if got := status(); got != 200 {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
	if _, body := guarded(t, w, "/token", good); !strings.Contains(string(body), `"X-User":["ada"]`) {
		t.Errorf("the endpoint got %s", body)
	}
	if at := w.metric("weir_auth_keys_refreshed_timestamp_seconds", "auth", "token"); time.Since(time.Unix(int64(at), 0)) > time.Minute {
		t.Errorf("the keys are from %v", at)
	}
	issuer.document.Store(nil)
	asked := issuer.requests.Load()
	w.reload(strings.Replace(tokensByURL, "{name: token,", "{name: renamed,", 1))
	if got := status(); got != 200 || issuer.requests.Load() != asked {
		t.Errorf("after a reload: %d, %d requests for keys, %d before", got, issuer.requests.Load(), asked)
	}
	next, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// A token of an unknown key makes weir ask early, once in 10 seconds.
	unknown := strings.SplitN(signToken(t, next, claims), ".", 2)[1]
	unknown = "Authorization: Bearer " + base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"ec-2"}`)) + "." + unknown
	askedAgain := func(after int64) {
		t.Helper()
		limit := time.Now().Add(25 * time.Second)
		for issuer.requests.Load() == after {
			if time.Now().After(limit) {
				t.Fatal("weir does not request the keys again")
			}
			if resp, _ := guarded(t, w, "/token", unknown); resp.StatusCode != 401 {
				t.Fatalf("a token of an unknown key: %s", resp.Status)
			}
		}
	}
	askedAgain(asked)
	if got := status(); got != 200 {
		t.Errorf("during an outage: %d", got)
	}
	issuer.set(`{"keys":[{"kty":"oct","k":"aGk"}]}`)
	asked = issuer.requests.Load()
	eventually(t, "weir requests the junk", func() error { // after the failure it retries
		if issuer.requests.Load() == asked {
			return fmt.Errorf("it did not")
		}
		return nil
	})
	if got := status(); got != 200 {
		t.Errorf("after a junk document: %d", got)
	}
	issuer.set(keyDocument(t, next))
	eventually(t, "the new keys are in use", func() error {
		if got := status(); got != 401 {
			return fmt.Errorf("%d", got)
		}
		return nil
	})
	if resp, _ := guarded(t, w, "/token", "Authorization: Bearer "+signToken(t, next, claims)); resp.StatusCode != 200 {
		t.Errorf("the new key: %s", resp.Status)
	}
	for _, want := range []string{"weir cannot get keys from a URL", "keys from a URL are in use"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("the log has no %q", want)
		}
	}
}
