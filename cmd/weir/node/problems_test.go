package node

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/memory"
	"github.com/weirproxy/weir/listener/pressure"
)

// A problem of the whole weir is shown while it lasts, however many events come after it.
func TestProblemsThatLast(t *testing.T) {
	const plain = `
admin: {address: "@admin"}
listeners: {web: {address: "@web", protocol: http}}
routes: [{listeners: [web], respond: {status: 204}}]
`
	r := newRunning(t, plain, "admin", "web", "nobody")
	wants := func(texts ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the problems are %q", texts), func() error {
			got := r.overviewOf("").Problems
			for i, p := range got {
				if p.Since.Before(r.started) || i >= len(texts) || !strings.Contains(p.Text, texts[i]) {
					return fmt.Errorf("%+v", got)
				}
			}
			if len(got) != len(texts) {
				return fmt.Errorf("%+v", got)
			}
			return nil
		})
	}
	wants()

	r.path = filepath.Join(t.TempDir(), "weir.yaml")
	reload := func(text string) error {
		if err := os.WriteFile(r.path, []byte(strings.NewReplacer(r.words...).Replace(text)), 0o644); err != nil {
			t.Fatal(err)
		}
		return r.reload("a test")
	}
	if reload("route: []\nlistener: {}\n") == nil || reload("route: []\n") == nil {
		t.Error("a wrong file was loaded")
	}
	wants(`weir.yaml:1:1: unknown key "route"`)
	if reload("route: []\nlistener: {}\n") == nil {
		t.Error("a wrong file was loaded")
	}
	wants("older one is in effect: " + r.path + ":1:1: unknown key \"route\"; did you mean \"routes\"? (and")
	if err := reload(plain); err != nil {
		t.Error(err)
	}
	wants()

	r.load(plain + "access_log: {path: /dev/full}\n")
	r.want("web", 204, "")
	wants("1 of its lines were dropped (access_log.path: /dev/full)")
	r.load(plain + "traces: {otlp: {url: \"http://@nobody\"}, sample: 1}\n")
	r.want("web", 204, "")
	wants("spans cannot be sent to the receiver of traces (traces.otlp): ")
	receiver := &http.Server{Addr: r.address("nobody"), Handler: new(collector)}
	go receiver.ListenAndServe()
	wants() // weir has tried again
	receiver.Close()
	r.want("web", 204, "")
	wants("spans cannot be sent to the receiver of traces (traces.otlp): ")
	r.load(plain)
	wants()

	r.resourceEvent(pressure.Event{Resource: "descriptors", Step: pressure.Shed, Begins: true})
	r.memoryEvent(memory.Event{Begins: true})
	wants("descriptors run short", "the memory account is full")
	r.resourceEvent(pressure.Event{Resource: "descriptors", Step: pressure.Shed})
	r.memoryEvent(memory.Event{})
	wants()

	r.lasting.begins("x", "first")
	r.lasting.begins("y", "second")
	r.lasting.begins("x", reloadProblem(errors.New("third")))
	wants("third", "second")
}
