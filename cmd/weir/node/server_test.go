package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

const web = `
listeners: {web: {address: '@web', protocol: http}}
routes: [{listeners: [web], backend: app}]
backends: {app: {endpoints: ['@app']}}
drain: {lame_duck: 0s, timeout: 2s}
`

func newWeb(t *testing.T, text string, names ...string) (*running, *app) {
	t.Helper()
	a := newApp(t, "app")
	return newRunning(t, strings.ReplaceAll(text, "@app", a.address), append(names, "web")...), a
}

// A configuration that cannot take effect changes nothing.
func TestApplyIsAllOrNothing(t *testing.T) {
	one, other := newApp(t, "one"), newApp(t, "other")
	r := newRunning(t, strings.ReplaceAll(web, "@app", one.address), "web", "new", "health")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	c := r.dial("web")
	c.ask("/")
	hash := r.configInEffect().Hash
	missing := filepath.Join(t.TempDir(), "missing.pem")
	changed := strings.ReplaceAll(web, "@app", other.address)
	for name, text := range map[string]string{
		"listener": strings.Replace(changed, "listeners: {", "listeners: {new: {address: '@new', protocol: http}, taken: {address: '"+taken.Addr().String()+"', protocol: http}, ", 1),
		"health":   changed + "health: {address: '" + taken.Addr().String() + "'}\n",
		"admin":    changed + "admin: {address: '" + taken.Addr().String() + "'}\n",
		"moved":    strings.Replace(changed, "@web", taken.Addr().String(), 1),
		"access":   changed + "access_log: {path: " + filepath.Join(missing, "x") + "}\n",
		"backend":  strings.Replace(changed, "backends: {", "backends: {tls: {protocol: https, tls: {ca: "+missing+"}, endpoints: ['127.0.0.1:1']}, ", 1),
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := file.Parse("test", []byte(strings.NewReplacer(r.words...).Replace(text)+adminOff(text)), os.LookupEnv)
			if err != nil {
				return // it does not load, which is also correct
			}
			if err := r.apply(cfg); err == nil {
				t.Fatal("it was applied")
			}
			if resp, body := c.ask("/"); resp.StatusCode != 200 || body != "one" || resp.Close {
				t.Errorf("the old connection gets %d, %q", resp.StatusCode, body)
			}
			r.want("web", 200, "one")
			if !r.refused("new") {
				t.Error("the new listener was left open")
			}
			if r.configInEffect().Hash != hash {
				t.Error("it is shown as the one in effect")
			}
		})
	}
	r.load(changed) // followed by a valid one
	if _, body := c.ask("/"); body != "other" {
		t.Errorf("after a good one %q answers", body)
	}
}

func adminOff(text string) string {
	if strings.Contains(text, "admin:") {
		return ""
	}
	return "\nadmin: {address: off}\n"
}

// Listeners that stay keep their sockets and connections, new listeners start, and
// removed listeners are closed when the reload is done.
func TestListenersComeAndGo(t *testing.T) {
	r, a := newWeb(t, web, "second")
	both := strings.ReplaceAll(web, "@app", a.address)
	both = strings.Replace(both, "listeners: {", "listeners: {second: {address: '@second', protocol: http}, ", 1)
	both = strings.Replace(both, "[web]", "[web, second]", 1)
	c := r.dial("web")
	c.ask("/")
	listening := r.listeners["web"]
	for range 5 {
		r.load(both)
		r.want("second", 200, "app")
		second := r.dial("second")
		second.ask("/")
		r.load(strings.ReplaceAll(web, "@app", a.address))
		if !r.refused("second") {
			t.Error("the listener that is gone still listens")
		}
		if resp, body := second.ask("/"); body != "app" || !resp.Close {
			t.Errorf("its connection gets %q, close: %t", body, resp.Close)
		}
		if resp, _ := c.ask("/"); resp.Close {
			t.Error("a connection of the listener that stays is closed")
		}
	}
	if r.listeners["web"] != listening {
		t.Error("the listener that stays is another one")
	}
}

// An address may move to another listener in one reload, and back in the next.
func TestListenersMove(t *testing.T) {
	r, a := newWeb(t, web, "second")
	at := func(address string) string {
		return strings.Replace(strings.ReplaceAll(web, "@app", a.address), "'@web'", "'@"+address+"'", 1)
	}
	for range 3 {
		r.load(at("second"))
		r.want("second", 200, "app")
		if !r.refused("web") {
			t.Error("the old address still listens")
		}
		r.load(at("web"))
		r.want("web", 200, "app")
	}
	for _, name := range []string{"other", "web", "other"} { // only the name changes
		r.load(strings.NewReplacer("web:", name+":", "[web]", "["+name+"]").Replace(at("web")))
		r.want("web", 200, "app")
	}
}

// The health and the admin port can move, end, and start again.
func TestPortsMove(t *testing.T) {
	r, a := newWeb(t, web, "one", "two")
	text := strings.ReplaceAll(web, "@app", a.address)
	get := func(name, path string) (int, string) {
		t.Helper()
		c := r.dial(name)
		defer c.Close()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
		resp, body := c.answer()
		return resp.StatusCode, body
	}
	for _, way := range [][2]string{{"one", "two"}, {"two", "one"}, {"one", "two"}} {
		r.load(text + "health: {address: '@" + way[0] + "'}\nadmin: {address: '@" + way[1] + "'}\n")
		if status, _ := get(way[0], "/"); status != 200 {
			t.Errorf("the verdict is %d", status)
		}
		if status, body := get(way[1], "/metrics"); status != 200 || !strings.Contains(body, "weir_config_hash") {
			t.Errorf("the metrics are %d", status)
		}
		r.load(text)
		if !r.refused("one") || !r.refused("two") {
			t.Error("a port that is gone still listens")
		}
	}
}

// A client that moves the admin port by its request for a reload gets an answer.
func TestAdminPortMovesItself(t *testing.T) {
	r, a := newWeb(t, web, "one", "two")
	r.path = filepath.Join(t.TempDir(), "weir.yaml")
	text := strings.NewReplacer(r.words...).Replace(strings.ReplaceAll(web, "@app", a.address))
	write := func(admin string) {
		if err := os.WriteFile(r.path, []byte(text+"admin: {address: '"+r.address(admin)+"'}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.endWatch() // a reload by the watch would move the port before the request arrives
	write("one")
	if err := r.reload("a test"); err != nil {
		t.Fatal(err)
	}
	for _, way := range []string{"one", "two", "one"} {
		write(map[string]string{"one": "two", "two": "one"}[way])
		resp, err := bySocket.Post("http://"+r.address(way)+"/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !bytes.Contains(body, []byte(r.configInEffect().Hash)) {
			t.Errorf("%d, %s", resp.StatusCode, body)
		}
	}
	// A listener that takes long to close delays the answer, and does not prevent it.
	r.change.Lock()
	r.closeBehind([]func(){func() { time.Sleep(1500 * time.Millisecond) }}) // longer than a second, which was once the limit for the answer
	r.change.Unlock()
	write("one")
	resp, err := bySocket.Post("http://"+r.address("two")+"/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := os.WriteFile(r.path, []byte("listeners: nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	resp, err = bySocket.Post("http://"+r.address("one")+"/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a bad file: %d", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}

// A file that changes while weir puts its previous content into effect is loaded again.
func TestChangesInQuickSuccession(t *testing.T) {
	r, a := newWeb(t, web)
	r.path = filepath.Join(t.TempDir(), "weir.yaml")
	text := strings.NewReplacer(r.words...).Replace(strings.ReplaceAll(web, "@app", a.address)) + "admin: {address: off}\n"
	hashes := map[string]bool{}
	var cfg *config.Config
	for i := range 20 {
		if err := os.WriteFile(r.path, fmt.Appendf(nil, "%s\nnode: n%d\n", text, i), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if cfg, err = file.Load(r.path, os.LookupEnv); err != nil {
			t.Fatal(err)
		}
		hashes[cfg.Hash] = true
		if i%5 == 0 {
			r.reload("a test")
		}
	}
	eventually(t, "the last one is in effect", func() error {
		if now := r.configInEffect(); now.Node != cfg.Node {
			return fmt.Errorf("%s is", now.Node)
		}
		return nil
	})
	r.endWatch()
}

func TestShutdown(t *testing.T) {
	raw := strings.Replace(web, "listeners: {", "listeners: {raw: {address: '@raw', protocol: tcp}, ", 1)
	raw = strings.Replace(raw, "routes: [", "routes: [{listeners: [raw], backend: echo}, ", 1)
	raw = strings.Replace(raw, "backends: {", "backends: {echo: {protocol: tcp, endpoints: ['@echo']}, ", 1)
	start := func(t *testing.T) (*running, *app) {
		return newWeb(t, strings.Replace(raw, "@echo", newEcho(t), 1), "raw")
	}
	cut := func(t *testing.T, err error) {
		t.Helper()
		if !errors.Is(err, errCut) && !errors.Is(err, errCutNow) {
			t.Errorf("it ended with %v", err)
		}
	}
	t.Run("nothing", func(t *testing.T) {
		r, _ := start(t)
		if err := r.end(patience); err != nil {
			t.Error(err)
		}
	})
	t.Run("idle", func(t *testing.T) { // the connection is idle, so closing it harms no client
		r, _ := start(t)
		c, silent := r.dial("web"), r.dial("web")
		c.ask("/")
		fmt.Fprint(silent, "GET / HT")
		begun := time.Now()
		if err := r.end(patience); err != nil {
			t.Error(err)
		}
		if d := time.Since(begun); d < time.Second {
			t.Errorf("an idle connection was closed after %v", d)
		}
		if rest, err := io.ReadAll(c.r); len(rest) > 0 {
			t.Errorf("%q, %v", rest, err)
		}
	})
	t.Run("idle-until-its-next", func(t *testing.T) {
		r, _ := start(t)
		c := r.dial("web")
		c.ask("/")
		done := make(chan error)
		go func() { done <- r.end(patience) }()
		eventually(t, "the listener is closed", func() error {
			if !r.refused("web") {
				return errors.New("it listens")
			}
			return nil
		})
		if resp, body := c.ask("/"); body != "app" || !resp.Close {
			t.Errorf("%q, close: %t", body, resp.Close)
		}
		c.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("exchange-that-ends", func(t *testing.T) {
		r, a := start(t)
		c := r.dial("web")
		fmt.Fprint(c, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
		<-a.held
		done := make(chan error)
		go func() { done <- r.end(patience) }()
		eventually(t, "the listener is closed", func() error {
			if !r.refused("web") {
				return errors.New("it listens")
			}
			return nil
		})
		close(a.let)
		if resp, body := c.answer(); body != "app" || !resp.Close {
			t.Errorf("%q, close: %t", body, resp.Close)
		}
		c.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("exchange-that-does-not", func(t *testing.T) {
		r, a := start(t)
		c := r.dial("web")
		fmt.Fprint(c, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
		<-a.held
		cut(t, r.end(patience))
		if rest, _ := io.ReadAll(c.r); len(rest) > 0 {
			t.Errorf("it got %q", rest)
		}
	})
	t.Run("tunnel", func(t *testing.T) {
		r, _ := start(t)
		c := r.dial("raw")
		fmt.Fprint(c, "x")
		if _, err := c.r.ReadByte(); err != nil {
			t.Fatal(err)
		}
		cut(t, r.end(patience))
	})
	t.Run("by-force", func(t *testing.T) {
		r, a := start(t)
		c := r.dial("web")
		fmt.Fprint(c, "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
		<-a.held
		begun := time.Now()
		cut(t, r.end(0))
		if d := time.Since(begun); d > patience/2 {
			t.Errorf("it took %v", d)
		}
	})
	t.Run("tunnel-that-ends", func(t *testing.T) {
		r, _ := start(t)
		c := r.dial("raw")
		fmt.Fprint(c, "x")
		c.r.ReadByte()
		done := make(chan error)
		go func() { done <- r.end(patience) }()
		eventually(t, "the listener is closed", func() error {
			if !r.refused("raw") {
				return errors.New("it listens")
			}
			return nil
		})
		fmt.Fprint(c, "y")
		if b, err := c.r.ReadByte(); b != 'y' {
			t.Errorf("the tunnel gives %q, %v", b, err)
		}
		c.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// From the beginning of a drain, the verdict is 503 while weir still serves connections.
func TestLameDuck(t *testing.T) {
	r, _ := newWeb(t, strings.Replace(web, "lame_duck: 0s", "lame_duck: 1h", 1)+"health: {address: '@health'}\n", "health")
	r.want("web", 200, "app")
	now, done := make(chan struct{}), make(chan error, 1)
	end := sync.OnceFunc(func() { close(now) })
	defer end()
	r.ended = true
	go func() { done <- r.shutdown(now) }()
	eventually(t, "the verdict changes", func() error {
		c := r.dial("health")
		defer c.Close()
		if resp, _ := c.ask("/"); resp.StatusCode != 503 {
			return fmt.Errorf("it is %d", resp.StatusCode)
		}
		return nil
	})
	c := r.dial("web")
	if resp, body := c.ask("/"); body != "app" || !resp.Close {
		t.Errorf("%q, close: %t", body, resp.Close)
	}
	c.Close()
	end()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// With the default lame_duck, weir waits only for load balancers that ask the health port.
func TestNoLameDuckIfNobodyAsks(t *testing.T) {
	r, _ := newWeb(t, strings.Replace(web, "lame_duck: 0s, ", "", 1)+"health: {address: '@health'}\n", "health")
	now := make(chan struct{})
	close(now)
	ends := func(want string) {
		t.Helper()
		if because := r.lameDuck(r.configInEffect().Drain, now); because != want {
			t.Errorf("the lame-duck phase ends because of %q, want %q", because, want)
		}
	}
	ends(lameDuckAlone)
	c := r.dial("health")
	defer c.Close()
	c.ask("/readyz")
	ends(lameDuckCut)
}

// A reload removes an endpoint or a route. weir cuts the tunnels that use it after
// drain.timeout. All other tunnels stay.
func TestReloadDrainsTunnels(t *testing.T) {
	one, two := newEcho(t), newEcho(t)
	text := `
listeners: {a: {address: '@a', protocol: tcp}, b: {address: '@b', protocol: tcp}}
routes: [{name: to-a, listeners: [a], backend: one}, {name: to-b, listeners: [b], backend: two}]
backends: {one: {protocol: tcp, endpoints: ['` + one + `']}, two: {protocol: tcp, endpoints: ['` + two + `']}}
drain: {lame_duck: 0s, timeout: 1s}
`
	r := newRunning(t, text, "a", "b")
	open := func(name string) *client {
		c := r.dial(name)
		fmt.Fprint(c, "x")
		if _, err := c.r.ReadByte(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	alive := func(c *client) bool {
		fmt.Fprint(c, "y")
		b, err := c.r.ReadByte()
		return b == 'y' && err == nil
	}
	a, b := open("a"), open("b")
	r.load(strings.Replace(text, one, two, 1)) // its endpoint is removed
	if !alive(a) {
		t.Error("a tunnel was cut at once")
	}
	if _, err := a.r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a tunnel to an endpoint that is gone: %v", err)
	}
	if !alive(b) {
		t.Error("a tunnel to an endpoint that stays was cut")
	}
	r.load(strings.Replace(text, "to-b", "other", 1)) // its route is removed
	if _, err := b.r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a tunnel of a route that is gone: %v", err)
	}
}

// A second signal during the lame duck ends everything, and nobody is told to send a third one.
func TestSecondSignalInTheLameDuck(t *testing.T) {
	r, a := newWeb(t, strings.Replace(web, "lame_duck: 0s", "lame_duck: 1h", 1), "one", "two")
	r.terminal = true
	fmt.Fprint(r.dial("web"), "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n")
	<-a.held
	r.ended = true
	now, ended := make(chan struct{}), make(chan error)
	go func() { ended <- r.shutdown(now) }()
	eventually(t, "the line says how to end weir", func() error {
		if r.lines.FilterMessage("draining; press Ctrl-C again to end weir at once").Len() != 1 {
			return errors.New("there is none")
		}
		return nil
	})
	close(now)
	select {
	case err := <-ended:
		if !errors.Is(err, errCutNow) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if n := r.lines.FilterMessageSnippet("press Ctrl-C again").Len(); n != 1 {
		t.Errorf("%d lines ask for a signal", n)
	}
}
