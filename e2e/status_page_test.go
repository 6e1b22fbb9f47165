package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// page is a tab that shows a page without questions for passwords. It notes what the page may not do.
type page struct {
	*tab
	faults []string // exceptions, and errors in the console: a violation of the Content-Security-Policy is one
}

func newPage(b *browser) *page {
	b.t.Helper()
	own := b.call("", "Target.createBrowserContext", nil)["browserContextId"]
	target := b.call("", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": own})["targetId"]
	session := b.call("", "Target.attachToTarget", map[string]any{"targetId": target, "flatten": true})["sessionId"]
	p := &page{tab: &tab{browser: b, session: fmt.Sprint(session)}}
	b.seen = func(m devtools) {
		switch m.Method {
		case "Runtime.exceptionThrown":
			p.faults = append(p.faults, string(m.Params))
		case "Log.entryAdded":
			var e struct{ Entry struct{ Level, Text string } }
			if json.Unmarshal(m.Params, &e) == nil && e.Entry.Level == "error" && !strings.Contains(e.Entry.Text, "status of 422") { // of the wrong question
				p.faults = append(p.faults, e.Entry.Text)
			}
		}
	}
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(p.session, domain+".enable", nil)
	}
	return p
}

// size sets the size of the window in CSS pixels, and the preferred scheme of colours.
func (p *page) size(width, height int, scheme string) {
	p.t.Helper()
	p.call(p.session, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
	p.call(p.session, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// press presses and releases a key.
func (p *page) press(key string, code int) {
	p.t.Helper()
	for _, kind := range []string{"rawKeyDown", "char", "keyUp"} {
		event := map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
		if kind == "char" {
			if key != "Enter" {
				continue
			}
			event["text"] = "\r"
		}
		p.call(p.session, "Input.dispatchKeyEvent", event)
	}
}

// wants waits until an expression has a value.
func (p *page) wants(expression, want string) {
	p.t.Helper()
	eventually(p.t, "the page has "+want, func() error {
		if got := p.evaluate(expression); got != want {
			return fmt.Errorf("%s is %q", expression, got)
		}
		return nil
	})
}

// contains waits until a section contains a text.
func (p *page) contains(section, text string) {
	p.t.Helper()
	eventually(p.t, "the section "+section+" has "+text, func() error {
		if got := p.evaluate(`document.getElementById("` + section + `").innerText`); !strings.Contains(got, text) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// picture writes a picture of the page into the folder in WEIR_SCREENSHOTS; without it, nothing.
func (p *page) picture(name string) {
	p.t.Helper()
	folder := os.Getenv("WEIR_SCREENSHOTS")
	if folder == "" {
		return
	}
	data, _ := p.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png"})["data"].(string)
	png, err := base64.StdEncoding.DecodeString(data)
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name), png, 0o644)
	}
	if err != nil {
		p.t.Error(err)
	}
}

// A browser shows the status page: what happened, as it happens, with the keyboard alone, on a small
// screen, and without a violation of its Content-Security-Policy.
func TestChromiumShowsTheStatusPage(t *testing.T) {
	long(t)
	shop := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintln(w, "hello")
	})
	app, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: shop}
	go server.Serve(app)
	t.Cleanup(func() { server.Close() })

	var routes strings.Builder
	for i := range 60 {
		fmt.Fprintf(&routes, "  - {name: tenant-%02d, listeners: [web], hosts: [t%02d.example], backend: shop}\n", i, i)
	}
	w := newWeir(t).start(`
listeners:
  web: {address: "@web", protocol: http}
  websecure: {address: "@websecure", protocol: tls}
certificates: [{self_signed: {hosts: [shop.example]}}]
backends:
  shop: {endpoints: ["` + app.Addr().String() + `"]}
  search: {endpoints: ["@nobody"]}
routes:
  - {name: shop, listeners: [web, websecure], hosts: [shop.example], backend: shop}
  - {name: <b>search</b>, listeners: [web], hosts: [search.example], backend: search}
` + routes.String())
	ask := func(host, path string) {
		t.Helper()
		req, err := http.NewRequest("GET", "http://"+w.at("web")+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		resp, err := control.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	for range 40 {
		ask("shop.example", "/")
	}
	for range 6 {
		ask("search.example", "/")
	}
	ask("shop.example", "/broken")
	ask("unknown.example", "/")

	p := newPage(newBrowser(t, ""))
	p.size(1280, 900, "light")
	p.call(p.session, "Page.navigate", map[string]any{"url": "http://" + w.at("admin") + "/"})
	p.wants(`document.getElementById("badge")?.innerText`, "healthy")
	p.wants(`document.title`, "healthy – node-a – weir")
	p.contains("health", "The health port answers 200.")
	p.contains("updated", "; times are in the zone ")
	p.contains("listeners", w.at("web"))
	p.contains("routes", "shop.example")
	p.contains("routes", "<b>search</b>") // as text
	p.contains("routes", "page 1 of 3")
	p.wants(`getComputedStyle(document.querySelector("#backends .pager")).display`, "none") // one page
	p.contains("health", "1 of 2 backends have a problem")
	p.contains("backends", "failing")
	p.contains("backends", "refused")
	p.contains("certificates", "self-signed")
	p.contains("refusals", "no_route")
	p.contains("events", "listening")
	p.contains("traffic", "shown from 1,000 connections")
	p.wants(`String(document.getElementById("objects").hidden)`, "true") // there is no cluster
	if os.Getenv("WEIR_SCREENSHOTS") != "" {                             // the charts need some samples
		for end := time.Now().Add(100 * time.Second); time.Now().Before(end); time.Sleep(time.Duration(20+time.Now().Unix()%60) * time.Millisecond) {
			ask("shop.example", "/")
			ask(fmt.Sprintf("t%02d.example", time.Now().UnixNano()%23), "/")
		}
	}
	p.picture("status-page.png")

	// The page updates itself, and shows why the node is not healthy.
	if os.Getenv("WEIR_SCREENSHOTS") == "" {
		for range 20 {
			ask("shop.example", "/")
		}
		p.contains("connections", "68")
	}
	w.post("/cordon")
	p.wants(`document.getElementById("badge").innerText`, "not healthy")
	p.contains("health", "the node is cordoned")
	w.post("/uncordon")
	p.wants(`document.getElementById("badge").innerText`, "healthy")

	// A file that cannot be loaded stays a problem until it can.
	good, err := os.ReadFile(w.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.config, append([]byte("wrong: 1\n"), good...), 0o644); err != nil {
		t.Fatal(err)
	}
	p.contains("problems", `weir.yaml:1:1: unknown key "wrong"`)
	if err := os.WriteFile(w.config, good, 0o644); err != nil {
		t.Fatal(err)
	}
	p.wants(`String(document.getElementById("problems").innerText.includes("wrong"))`, "false")

	// Search and paging, with the keyboard alone.
	p.press("Tab", 9)
	p.wants(`document.activeElement.className`, "skip")
	p.evaluate(`document.querySelector("[name=routes]").focus()`)
	p.call(p.session, "Input.insertText", map[string]any{"text": "T07.exa"})
	p.contains("routes", "1 of 63")
	p.contains("routes", "tenant-07")
	p.wants(`document.activeElement.name`, "routes")
	p.evaluate(`document.activeElement.select()`)
	p.press("Delete", 46)
	p.contains("routes", "page 1 of 3")
	p.evaluate(`document.querySelector("#routes .pager button:last-child").focus()`)
	p.press("Enter", 13)
	p.contains("routes", "page 2 of 3")
	p.evaluate(`document.querySelector("#routes th[data-sort=name] button").focus()`)
	p.press("Enter", 13)
	p.contains("routes", "page 1 of 3")
	p.wants(`document.querySelector("#routes th[data-sort=name]").getAttribute("aria-sort")`, "ascending")

	// The explain form.
	p.evaluate(`document.querySelector("[name=url]").focus()`)
	p.call(p.session, "Input.insertText", map[string]any{"text": "http://shop.example/cart"})
	p.press("Enter", 13)
	p.contains("explained", "weir.yaml")
	p.evaluate(`document.querySelector("[name=url]").select()`)
	p.call(p.session, "Input.insertText", map[string]any{"text": "nonsense"})
	p.press("Enter", 13)
	p.contains("explained", "is not a URL that weir can explain")

	// Dark, and as wide as a telephone: nothing is cut off.
	p.size(375, 800, "dark")
	p.wants(`getComputedStyle(document.body).backgroundColor`, "rgb(20, 23, 26)")
	p.wants(`String(document.documentElement.scrollWidth)`, "375")
	if cut := p.evaluate(`[...document.querySelectorAll("td, button, input")].filter(e => e.getBoundingClientRect().right > 375).map(e => e.outerHTML).join()`); cut != "" {
		t.Errorf("these are cut off: %s", cut)
	}
	if lines := p.evaluate(`String(Math.round(document.querySelector("#rates td").getBoundingClientRect().height / 22))`); lines != "1" {
		t.Errorf("the word now has %s lines", lines)
	}
	p.wants(`getComputedStyle(document.querySelector("#listeners td.zero")).display`, "none")
	p.evaluate(`document.getElementById("routes").scrollIntoView()`)
	p.picture("status-page-narrow.png")

	// A hidden page starts no timer for another update. When the page is visible again, it updates itself.
	p.evaluate(`(() => {
		window.waits = [];
		window.cleared = 0;
		const start = setTimeout, clear = clearTimeout;
		window.setTimeout = (f, after) => { waits.push(after); return start(f, after); };
		window.clearTimeout = timer => { cleared++; clear(timer); };
		Object.defineProperty(document, "hidden", {value: true, configurable: true});
		document.dispatchEvent(new Event("visibilitychange"));
	})()`)
	if cleared := p.evaluate(`String(cleared)`); cleared == "0" {
		t.Error("a hidden page keeps its timer")
	}
	p.evaluate(`document.querySelector("[name=routes]").focus()`)
	p.call(p.session, "Input.insertText", map[string]any{"text": "T08.exa"})
	p.contains("routes", "1 of 63")
	if waits := p.evaluate(`waits.join()`); strings.Contains(","+waits+",", ",2000,") {
		t.Errorf("a hidden page waits for its next update: %s", waits)
	}
	p.evaluate(`delete document.hidden; document.dispatchEvent(new Event("visibilitychange"))`)
	p.wants(`String(waits.includes(2000))`, "true")

	// Nothing but the page's own origin is asked, and nothing is refused.
	if others := p.evaluate(`performance.getEntriesByType("resource").filter(r => !r.name.startsWith(location.origin)).map(r => r.name).join()`); others != "" {
		t.Errorf("the page loads %s", others)
	}
	if len(p.faults) > 0 {
		t.Errorf("the browser reports %q", p.faults)
	}

	// weir ends: the page says that it is old.
	w.terminate()
	p.contains("trouble", "weir does not answer since")
}

// A browser asks for the token as a password.
func TestChromiumSignsInToTheStatusPage(t *testing.T) {
	w := newWeir(t)
	w.start(`
admin: {address: "@admin", token: 0123456789abcdef0123}
listeners: {web: {address: "@web", protocol: http}}
routes: [{listeners: [web], respond: {status: 204}}]
`)
	b := newBrowser(t, "")
	url := "http://" + w.at("admin") + "/"
	if got := b.tab().visit(url); got.status != 401 || len(got.asked) != 1 || !strings.HasPrefix(got.asked[0], "basic weir") {
		t.Errorf("without the token: %+v", got)
	}
	if got := b.tab().visit(url, "me:0123456789abcdef0123"); got.status != 200 || !strings.Contains(got.text, "Traffic") {
		t.Errorf("with the token: %+v", got)
	}
}
