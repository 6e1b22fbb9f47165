package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/weirproxy/weir/config/file"
)

const severalFiles = `
include: more.yaml
listeners: {web: {address: '@web', protocol: http}}
admin: {address: '@admin'}
routes: [{listeners: [web], hosts: [a.example], respond: {body: a}}]
`

// startFile puts the configuration in severalFiles and more text into effect, and more.yaml with the host
// b.example. write changes one of the two files.
func startFile(t *testing.T, more string) (r *running, write func(name, text string)) {
	r = makeRunning(t, "web", "admin")
	folder := t.TempDir()
	r.path = filepath.Join(folder, "weir.yaml")
	write = func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(strings.NewReplacer(r.words...).Replace(text)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("weir.yaml", severalFiles+more)
	write("more.yaml", onlyHost("b.example"))
	cfg, err := file.Load(r.path, os.LookupEnv)
	if err == nil {
		err = r.start(cfg, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.endWatch)
	return r, write
}

func onlyHost(host string) string {
	return "routes: [{listeners: [web], hosts: [" + host + "], respond: {body: b}}]\n"
}

// serves returns an error unless exactly the hosts of want have routes.
func (r *running) serves(want ...string) error {
	for _, host := range []string{"a.example", "b.example", "c.example"} {
		req, _ := http.NewRequest("GET", "http://"+r.address("web"), nil)
		req.Host, req.Close = host, true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if served := resp.StatusCode == 200; served != strings.Contains(strings.Join(want, " "), host) {
			return fmt.Errorf("%s gets %d", host, resp.StatusCode)
		}
	}
	return nil
}

// holds returns an error unless GET /status, the status page and the metric say that a file is held because it would
// lose want; empty: no file is held.
func (r *running) holds(want string) error {
	answer := httptest.NewRecorder()
	r.showStatus(answer, nil)
	var st nodeStatus
	err := json.Unmarshal(answer.Body.Bytes(), &st)
	shown, metric := "", r.gauge("weir_config_held")
	for _, p := range r.overviewOf("").Problems {
		shown += p.Text
	}
	text := ""
	if want != "" {
		text = "because it would lose the host " + want + "; to apply it, run weir reload or send SIGHUP"
	}
	if !strings.Contains(st.Held, text) || (st.Held != "") != (want != "") || shown != st.Held || (metric == 1) != (want != "") {
		return fmt.Errorf("held is %q in the status, %q on its page, and the metric is %v", st.Held, shown, metric)
	}
	return err
}

// gauge returns the value of a metric without labels; -1: there is none.
func (r *running) gauge(name string) float64 {
	families, err := r.registry.Gather()
	for _, f := range families {
		if f.GetName() == name && err == nil {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// With reload: careful a file that would lose a host waits for a signal as a whole, also if an included file lost it.
func TestCarefulReloadHoldsAFile(t *testing.T) {
	r, write := startFile(t, "reload: careful\n")
	wants := func(held string, hosts ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("held is %q, and %q are served", held, hosts), func() error { return errors.Join(r.holds(held), r.serves(hosts...)) })
	}
	write("more.yaml", onlyHost("b.example, c.example"))
	wants("", "a.example", "b.example", "c.example")
	write("more.yaml", onlyHost("c.example"))
	wants("b.example", "a.example", "b.example", "c.example")
	if n := r.lines.FilterMessageSnippet("the changed configuration file is held").Len(); n != 1 {
		t.Errorf("%d lines", n)
	}
	if err := r.reload("SIGHUP"); err != nil {
		t.Error(err)
	}
	wants("", "a.example", "c.example")

	write("weir.yaml", strings.Replace(severalFiles, "a.example", "b.example", 1)+"reload: careful\n")
	wants("a.example", "a.example", "c.example")
	write("more.yaml", onlyHost("a.example"))
	wants("c.example", "a.example", "c.example")
	write("more.yaml", onlyHost("a.example, c.example"))
	wants("", "a.example", "b.example", "c.example")
}

// A held file ends the error of the file before it, because it has none. holds wants the held file as the only problem.
func TestHeldFileEndsTheErrorBeforeIt(t *testing.T) {
	r, write := startFile(t, "reload: careful\n")
	r.endWatch()
	write("more.yaml", "nonsense: true\n")
	if err := r.reload(fileChanged); err == nil || r.lasting.text(loadingProblem) == "" || r.gauge("weir_config_last_reload_success") != 0 {
		t.Errorf("the file has an error: %v", err)
	}
	write("more.yaml", onlyHost("c.example"))
	if _, held := r.reload(fileChanged).(*heldError); !held {
		t.Error("the file is not held")
	}
	if err := r.holds("b.example"); err != nil || r.gauge("weir_config_last_reload_success") != 1 {
		t.Errorf("%v, and the last success is %v", err, r.gauge("weir_config_last_reload_success"))
	}
}

// The result of a held file does not replace that of a later reload, which applies the file.
func TestResultOfAnOlderReload(t *testing.T) {
	r, write := startFile(t, "reload: careful\n")
	r.endWatch()
	write("more.yaml", onlyHost("c.example"))
	tells, goOn := make(chan struct{}), make(chan struct{})
	r.log = r.log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
		if strings.HasPrefix(e.Message, "the changed configuration file is held") {
			close(tells)
			<-goOn
		}
		return nil
	}))
	ended := make(chan struct{})
	go func() {
		r.reload(fileChanged)
		close(ended)
	}()
	<-tells
	if r.loading.TryLock() {
		r.loading.Unlock()
		t.Error("another reload can run before the result is told")
	}
	close(goOn)
	<-ended
}

// With reload: signal no change of a file takes effect without a signal.
func TestReloadBySignal(t *testing.T) {
	r, write := startFile(t, "reload: signal\n")
	write("more.yaml", onlyHost("b.example, c.example"))
	r.filesChanged()
	if err := r.serves("a.example", "b.example"); err != nil {
		t.Error(err)
	}
	if err := r.reload("SIGHUP"); err != nil || r.serves("a.example", "b.example", "c.example") != nil {
		t.Errorf("after the signal: %v, %v", err, r.serves("a.example", "b.example", "c.example"))
	}
}
