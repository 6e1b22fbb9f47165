package node

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/cmd/weir/node/status"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/tls/acme"
)

// overviewOf asks the admin port.
func (r *running) overviewOf(query string) (o status.Overview) {
	r.t.Helper()
	res, err := http.Get("http://" + r.address("admin") + "/status/overview?" + query)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if err := json.Unmarshal(body, &o); err != nil || res.StatusCode != http.StatusOK {
		r.t.Fatalf("%d %s: %v", res.StatusCode, body, err)
	}
	return o
}

const observedNode = `
node: edge1
admin: {address: "@admin"}
listeners:
  web: {address: "@web", protocol: http}
  guarded: {address: "@guarded", protocol: http, proxy_protocol: lb}
proxy_protocol: {lb: {rules: [{from: [127.0.0.1/32], header: require}]}}
backends:
  nothing: {endpoints: ["@nobody"]}
routes:
  - {name: hello, listeners: [web], hosts: [hello.test], respond: {status: 204}}
  - {name: broken, listeners: [web], hosts: [broken.test, other.test], backend: nothing}
  - {name: hidden, listeners: [guarded], backend: nothing}
`

// The overview shows what happened: requests, errors, refusals, and endpoints that do not answer.
func TestOverview(t *testing.T) {
	r := newRunning(t, observedNode, "admin", "web", "guarded", "nobody")
	ask := func(host string) {
		t.Helper()
		req, _ := http.NewRequest("GET", "http://"+r.address("web")+"/", nil)
		req.Host = host
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	for range 7 {
		ask("hello.test")
	}
	for range 6 {
		ask("broken.test")
	}
	ask("unknown.test")
	res, err := http.Get("http://" + r.address("guarded") + "/") // without a PROXY header
	if err == nil {
		res.Body.Close()
		t.Error("the listener needs no PROXY header")
	}
	r.log.Named("a").With(zap.String("object", "x")).Warn("something happened", zap.Error(errors.New("broken")), zap.Int("n", 3))

	var o status.Overview
	eventually(t, "the overview shows all", func() error {
		o = r.overviewOf("routes_sort=name")
		switch {
		case o.Traffic.Total != 14:
			return fmt.Errorf("%d requests", o.Traffic.Total)
		case len(o.Refusals) < 3: // header_missing, no_route, and the endpoint
			return fmt.Errorf("refusals %+v", o.Refusals)
		case o.Backends.Bad != 1:
			return fmt.Errorf("backends %+v", o.Backends)
		}
		return nil
	})
	if o.Node != "edge1" || o.ConfigHash == "" || !o.Health.Healthy || o.Health.Reasons == nil || o.Uptime <= 0 || o.Refresh != 2 {
		t.Errorf("%+v", o)
	}
	rows := map[string]status.Route{}
	for _, row := range o.Routes.Rows {
		rows[row.Name] = row
	}
	if len(rows) != 4 || o.Routes.All != 4 {
		t.Errorf("routes %+v", o.Routes)
	}
	if got := rows["hello"]; got.Total != 7 || got.Failed != 0 || got.Backend != "" || !slices.Equal(got.Hosts, []string{"hello.test"}) || !strings.Contains(got.Position, "test:") {
		t.Errorf("%+v", got)
	}
	if got := rows["broken"]; got.Total != 6 || got.Failed != 6 || got.Backend != "nothing" || len(got.Hosts) != 2 {
		t.Errorf("%+v", got)
	}
	if got := rows[""]; got.Total != 1 {
		t.Errorf("requests without a route: %+v", got)
	}
	if e := o.Backends.Rows[0].Endpoints; len(e) != 1 || e[0].State != "failing" || !strings.Contains(e[0].Error, "refused") {
		t.Errorf("endpoints %+v", e)
	}
	where := map[string]string{}
	for _, refusal := range o.Refusals {
		where[refusal.Reason] = refusal.What + " " + refusal.Where
	}
	if where["header_malformed"]+where["header_missing"] != "connection guarded" || where["no_route"] != "request " {
		t.Errorf("refusals %+v", o.Refusals)
	}
	if where["respond"] != "" {
		t.Error("a fixed response counts as refused")
	}
	if len(o.Listeners) != 2 || o.Listeners[0].Address == "" {
		t.Errorf("listeners %+v", o.Listeners)
	}
	if i := slices.IndexFunc(o.Events, func(e status.Event) bool {
		return e.Bad && e.Text == "something happened: object x, error broken, n 3"
	}); i < 0 {
		t.Errorf("events %+v", o.Events)
	}
	if o = r.overviewOf("routes=OTHER.test&rows=1"); o.Routes.Matching != 1 || o.Routes.Rows[0].Name != "broken" {
		t.Errorf("a search finds %+v", o.Routes)
	}
	if o.Objects != nil {
		t.Error("there is a cluster")
	}
}

func TestPagesOfManyRoutesAskLessOften(t *testing.T) {
	for rows, want := range map[int]time.Duration{0: 2 * time.Second, 8000: 2 * time.Second, 20_000: 5 * time.Second, 40_000: 10 * time.Second, 1 << 30: 10 * time.Second} {
		if got := refreshAfter(rows); got != want {
			t.Errorf("%d rows: %v, want %v", rows, got, want)
		}
	}
}

// A certificate that weir cannot obtain is shown with the next attempt, until its name is removed.
func TestOverviewShowsFailedCertificates(t *testing.T) {
	r := newRunning(t, `
admin: {address: "@admin"}
certificates:
  - self_signed: {hosts: [own.test]}
listeners:
  web: {address: "@web", protocol: tls}
routes:
  - {name: a, listeners: [web], hosts: [own.test], respond: {status: 204}}
`, "admin", "web")
	next := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	cfg := *r.configInEffect()
	r.issuing.note(acme.Event{Kind: acme.Failed, Name: "removed.test", Err: errors.New("no"), Next: next})
	r.issuing.note(acme.Event{Kind: acme.Failed, Name: "demanded.test", Err: errors.New("no"), Next: next, OnDemand: true})
	if got := r.issuing.list(&cfg); len(got) != 0 {
		t.Errorf("names that no certificate has: %v", got)
	}
	cfg.Certificates = []config.Certificate{{ACME: &config.ACME{Hosts: []string{"own.test"}, OnDemand: new(config.OnDemand)}}}
	for _, name := range []string{"own.test", "removed.test", "demanded.test"} {
		r.issuing.note(acme.Event{Kind: acme.Failed, Name: name, Err: errors.New("no"), Next: next, OnDemand: name == "demanded.test"})
	}
	if got := slices.Sorted(maps.Keys(r.issuing.list(&cfg))); !slices.Equal(got, []string{"demanded.test", "own.test"}) {
		t.Errorf("names of an entry with hosts and on_demand: %v", got)
	}
	if got := r.issuing.list(&cfg)["own.test"]; got.Err.Error() != "no" || !got.Next.Equal(next) {
		t.Errorf("%+v", got)
	}
	r.issuing.note(acme.Event{Kind: acme.Waiting, Name: "own.test", Next: next})
	if got := r.issuing.list(&cfg)["own.test"]; got.Err == nil {
		t.Error("a name that weir waits for has no reason")
	}
	o := r.overviewOf("")
	if c := o.Certificates.Rows; len(c) != 1 || c[0].Source != "self-signed" || c[0].NotAfter.Before(time.Now()) || c[0].Names[0] != "own.test" || c[0].Soon {
		t.Errorf("certificates %+v", c)
	}
}

// Clients that need TLS 1.0 or 1.1 are shown with their host and network, and all handshakes by version.
func TestOverviewShowsOldClients(t *testing.T) {
	r := newRunning(t, `
admin: {address: "@admin"}
certificates:
  - self_signed: {hosts: [old.test]}
tls_policies:
  partners: {min_version: "1.0", cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]}
listeners:
  web: {address: "@web", protocol: tls}
routes:
  - {name: a, listeners: [web], hosts: [old.test], tls_policy: partners, respond: {status: 204}}
`, "admin", "web")
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11, tls.VersionTLS11, tls.VersionTLS12, tls.VersionTLS13} {
		c, err := tls.Dial("tcp", r.address("web"), &tls.Config{ServerName: "old.test", InsecureSkipVerify: true, MinVersion: version, MaxVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: old.test\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, c) // the handshake is counted before the answer
		c.Close()
	}
	o := r.overviewOf("")
	if v := o.TLS.Versions; v["TLS 1.0"] != 1 || v["TLS 1.1"] != 2 || v["TLS 1.2"] != 1 || v["TLS 1.3"] != 1 {
		t.Errorf("handshakes %v", v)
	}
	old := map[string]uint64{}
	for _, c := range o.TLS.Old {
		old[c.Version] = c.Count
		if c.Host != "old.test" || c.Network != "127.0.0.0/24" || c.JA4 == "" || c.LastSeen.Before(r.started.Add(-time.Second)) {
			t.Errorf("%+v", c)
		}
	}
	if len(o.TLS.Old) != 2 || old["TLS 1.0"] != 1 || old["TLS 1.1"] != 2 {
		t.Errorf("old clients %+v", o.TLS.Old)
	}
}

// Browsers get the page, and other programs the list of paths. The page may load only its own files.
func TestStatusPage(t *testing.T) {
	r := newRunning(t, "admin: {address: '@admin'}\nlisteners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], respond: {status: 204}}]\n", "admin", "web")
	get := func(path string, header ...string) (*http.Response, string) {
		t.Helper()
		req, _ := http.NewRequest("GET", "http://"+r.address("admin")+path, nil)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res, string(body)
	}
	if res, body := get("/", "Accept", "*/*"); !strings.HasPrefix(body, "weir, admin port") || res.Header.Get("Vary") != "Accept" {
		t.Errorf("curl gets %q", body)
	}
	for path, kind := range map[string]string{"/": "text/html; charset=utf-8", "/status/page.css": "text/css; charset=utf-8", "/status/page.js": "text/javascript; charset=utf-8"} {
		res, body := get(path, "Accept", "text/html,*/*")
		h := res.Header
		if res.StatusCode != 200 || h.Get("Content-Type") != kind || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %d %v", path, res.StatusCode, h)
		}
		if policy := h.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: policy %q", path, policy)
		}
		for _, outside := range []string{"http://", "https://", " style=", "innerHTML"} {
			for _, line := range strings.Split(body, "\n") {
				if strings.Contains(line, outside) && !strings.Contains(line, "http://www.w3.org/2000/svg") && !strings.Contains(line, "placeholder=") {
					t.Errorf("%s has %q in %q", path, outside, line)
				}
			}
		}
		if again, _ := get(path, "Accept", "text/html", "If-None-Match", h.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %d", path, again.StatusCode)
		}
	}
}

// A browser can ask for the token as a password, where it also says which page sends a request.
func TestBrowsersAreAskedForThePassword(t *testing.T) {
	r := newRunning(t, "admin: {address: '@admin', token: 0123456789abcdef}\nlisteners: {web: {address: '@web', protocol: http}}\nroutes: [{listeners: [web], respond: {status: 204}}]\n", "admin", "web")
	f := func(accept string, want int) {
		t.Helper()
		req, _ := http.NewRequest("GET", "http://"+r.address("admin")+"/", nil)
		req.Header.Set("Accept", accept)
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header["Www-Authenticate"]; res.StatusCode != 401 || len(got) != want {
			t.Errorf("Accept %s: %d, %q", accept, res.StatusCode, got)
		}
	}
	f("text/html", 2)
	f("*/*", 1)
	elsewhere, _ := http.NewRequest("GET", "http://192.0.2.1:8087/", nil)
	elsewhere.Header.Set("Accept", "text/html")
	if mayAskForPassword(elsewhere) {
		t.Error("a password is asked for over a plain connection from another machine")
	}
}
