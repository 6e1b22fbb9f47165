package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Story 3 of the design: traffic was sent to nodes that could not serve it. The health port must report the
// health of this node, in the format that load balancers read, to every kind of probe.

const verdictConfig = `
listeners:
  web: {address: '@web', protocol: http}
routes: [{listeners: [web], backend: app}]
backends:
  app:
    endpoints:
      - {address: '@local', node: node-a}
      - {address: '@local2', node: node-a}
      - {address: '@remote', node: node-b}
    health_check: {http: {path: /healthz}, interval: 500ms, timeout: 500ms, rise: 1, fall: 2}
health: {address: '@health', require_local: [app], from: [127.0.0.0/8]}
`

func TestStory3VerdictOfThisNode(t *testing.T) {
	t.Parallel()
	local, local2, remote := newWebBackend(t, "local"), newWebBackend(t, "local2"), newWebBackend(t, "remote")
	w := newWeir(t)
	w.address["local"], w.address["local2"], w.address["remote"] = local.address, local2.address, remote.address
	w.start(verdictConfig)

	w.wantVerdict(200)
	local.close()
	wantWeight(t, w, 200, 1)
	local2.sick.Store(true)
	wantWeight(t, w, 503, 0)
	// Load balancers should not use this node, but weir still serves the clients that arrive: the endpoint of
	// the other node answers.
	if status, _, err := w.get("web", "/"); status != 200 || err != nil {
		t.Errorf("without a local endpoint a request gets %d, %v", status, err)
	}
	local2.sick.Store(false)
	wantWeight(t, w, 200, 1)
	local.open(t)
	wantWeight(t, w, 200, 2)

	status, body, err := w.get("health", "/livez")
	if err != nil || status != 200 {
		t.Errorf("/livez: %d, %s, %v", status, body, err)
	}
	for _, path := range []string{"/", "/healthz", "/any/path?at=all"} {
		if status, body, err := w.get("health", path); err != nil || status != 200 {
			t.Errorf("%s: %d, %s, %v", path, status, body, err)
		}
	}
}

// wantWeight waits for a verdict that has this status and this number of local endpoints.
func wantWeight(t *testing.T, w *weir, status, endpoints int) {
	t.Helper()
	eventually(t, fmt.Sprintf("the verdict is %d with %d local endpoints", status, endpoints), func() error {
		resp, err := control.Get("http://" + w.at("health") + "/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		var v struct {
			LocalEndpoints int      `json:"localEndpoints"`
			Verdict        string   `json:"verdict"`
			Reasons        []string `json:"reasons"`
		}
		if err := json.Unmarshal(body, &v); err != nil {
			return fmt.Errorf("%q: %w", body, err)
		}
		weight := resp.Header.Get("X-Load-Balancing-Endpoint-Weight")
		if resp.StatusCode != status || v.LocalEndpoints != endpoints || weight != fmt.Sprint(endpoints) ||
			v.Verdict == "" || (status == 503) != (len(v.Reasons) > 0) {
			return fmt.Errorf("it is %d, weight %q: %s", resp.StatusCode, weight, body)
		}
		return nil
	})
}

func TestStory3CordonAndDrain(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["local"], w.address["local2"], w.address["remote"] = app.address, freePort(t), freePort(t)
	w.start(verdictConfig)
	w.wantVerdict(200)
	w.wantMetric(1, "weir_node_healthy")

	f := func(down, up string, readyz int) {
		t.Helper()
		w.post(down)
		if status, body, err := w.get("health", "/"); status != 503 || err != nil {
			t.Errorf("after %s the verdict is %d at once: %s, %v", down, status, body, err)
		}
		w.wantMetric(0, "weir_node_healthy")
		if status, _, _ := w.get("health", "/livez"); status != 200 {
			t.Errorf("after %s /livez says %d: the node would be killed", down, status)
		}
		if status, _, _ := w.get("health", "/readyz"); status != readyz {
			t.Errorf("after %s /readyz says %d, not %d", down, status, readyz)
		}
		if status, _, err := w.get("web", "/"); status != 200 || err != nil {
			t.Errorf("after %s a new connection gets %d, %v", down, status, err)
		}
		w.post(up)
		w.wantVerdict(200)
	}
	f("/cordon", "/uncordon", 200)
	f("/drain", "/undrain", 503)
}

func TestStory3EveryKindOfProbe(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["local"], w.address["local2"], w.address["remote"] = app.address, freePort(t), freePort(t)
	w.start(verdictConfig)
	w.wantVerdict(200)

	probes := map[string][]byte{
		"bare":       nil,
		"v1":         v1Header("10.0.0.9:1000", "10.0.0.1:8086"),
		"v1 UNKNOWN": []byte("PROXY UNKNOWN\r\n"),
		"v2":         v2Header("10.0.0.9:1000", "10.0.0.1:8086"),
		"v2 LOCAL":   v2Local(),
		"NLB":        nlbProbe(),
	}
	probe := func(header []byte) (int, error) {
		c := dialWith(t, w.at("health"), header)
		resp, _, err := ask(c, bufio.NewReader(c), "GET", "node", "/healthz", "Connection: close")
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, nil
	}
	f := func(want int) {
		t.Helper()
		for name, header := range probes {
			if status, err := probe(header); status != want || err != nil {
				t.Errorf("%s probe: %d, %v; want %d", name, status, err, want)
			}
		}
	}
	f(200)
	w.post("/cordon")
	f(503)
	w.post("/uncordon")

	// weir closes a probe with a PROXY header from an address that may not send one. It still answers a probe
	// without a header.
	w.reload(strings.Replace(verdictConfig, "from: [127.0.0.0/8]}", "from: [10.0.0.0/8]}", 1))
	w.wantVerdict(200)
	for name, header := range probes {
		status, err := probe(header)
		if name == "bare" && (status != 200 || err != nil) {
			t.Errorf("bare probe: %d, %v", status, err)
		}
		if name != "bare" && err == nil {
			t.Errorf("%s probe from a stranger was answered with %d", name, status)
		}
	}
}

// weir answers a probe with HTTP keep-alive or HEAD like any other probe.
func TestStory3ProbesThatStay(t *testing.T) {
	t.Parallel()
	app := newWebBackend(t, "app")
	w := newWeir(t)
	w.address["local"], w.address["local2"], w.address["remote"] = app.address, freePort(t), freePort(t)
	w.start(verdictConfig)
	w.wantVerdict(200)
	c := dial(t, w.at("health"))
	r := bufio.NewReader(c)
	for _, method := range []string{"GET", "HEAD", "GET"} {
		resp, _, err := ask(c, r, method, "node", "/")
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", method, resp, err)
		}
	}
}
