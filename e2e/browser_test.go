package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"
)

// browser is a Chromium that a test controls by the Chrome DevTools Protocol. Each visit reports
// what the page's reader sees.
type browser struct {
	t      *testing.T
	ctx    context.Context
	c      *websocket.Conn
	lastID int
	seen   func(devtools) // called with each event; nil: nothing
}

// newBrowser starts Chromium. It finds hosts by rules such as "MAP shop.test 127.0.0.1:8443".
func newBrowser(t *testing.T, rules string) *browser {
	t.Helper()
	needLinux(t)
	dir := t.TempDir()
	runPeer(t, need(t, "chromium-headless-shell"), "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--ignore-certificate-errors", "--no-proxy-server",
		"--user-data-dir="+dir, "--remote-debugging-port=0", "--host-resolver-rules="+rules, "about:blank")
	var port, path string
	within(t, 3*patience, "Chromium says where it listens", func() error {
		text, err := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		if err != nil {
			return err
		}
		var whole bool
		if port, path, whole = strings.Cut(string(text), "\n"); !whole || path == "" {
			return errNotYet
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 12*patience)
	t.Cleanup(cancel)
	c, _, err := websocket.Dial(ctx, "ws://127.0.0.1:"+port+strings.TrimSpace(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.CloseNow() })
	c.SetReadLimit(16 << 20) // a picture of a page is large
	return &browser{t: t, ctx: ctx, c: c}
}

// devtools is a message of the protocol: a result has an ID, an event has a Method.
type devtools struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// send calls a method and returns the ID of the call.
func (b *browser) send(session, method string, params map[string]any) int {
	b.t.Helper()
	b.lastID++
	call := map[string]any{"id": b.lastID, "method": method, "params": params}
	if session != "" {
		call["sessionId"] = session
	}
	if err := wsjson.Write(b.ctx, b.c, call); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
	return b.lastID
}

func (b *browser) receive() (m devtools) {
	b.t.Helper()
	if err := wsjson.Read(b.ctx, b.c, &m); err != nil {
		b.t.Fatalf("Chromium reports nothing more: %v", err)
	}
	if m.Error != nil {
		b.t.Fatalf("Chromium refuses call %d: %s", m.ID, m.Error)
	}
	if b.seen != nil && m.Method != "" {
		b.seen(m)
	}
	return m
}

// call calls a method and returns its result. It skips events.
func (b *browser) call(session, method string, params map[string]any) (result map[string]any) {
	b.t.Helper()
	id := b.send(session, method, params)
	for {
		m := b.receive()
		if m.ID != id {
			continue
		}
		if err := json.Unmarshal(m.Result, &result); err != nil {
			b.t.Fatal(err)
		}
		return result
	}
}

// tab opens a tab that shares no cookies and no passwords with other tabs.
func (b *browser) tab() *tab {
	b.t.Helper()
	own := b.call("", "Target.createBrowserContext", nil)["browserContextId"]
	target := b.call("", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": own})["targetId"]
	session := b.call("", "Target.attachToTarget", map[string]any{"targetId": target, "flatten": true})["sessionId"]
	p := &tab{browser: b, session: fmt.Sprint(session)}
	for _, domain := range []string{"Page", "Network"} {
		b.call(p.session, domain+".enable", nil)
	}
	b.call(p.session, "Fetch.enable", map[string]any{"handleAuthRequests": true})
	return p
}

type tab struct {
	*browser
	session string
}

// visited is what a visit to a page came to.
type visited struct {
	status int      // of the last response
	asked  []string // scheme and realm of each question for a password
	text   string   // of the page
}

// visit loads a page. It answers questions for a password by the passwords ("user:password") in
// turn, and cancels further questions.
func (p *tab) visit(url string, passwords ...string) (v visited) {
	p.t.Helper()
	p.send(p.session, "Page.navigate", map[string]any{"url": url})
	return p.loaded(passwords...)
}

// loaded waits until a page is loaded that the tab is about to go to, and is otherwise like visit.
func (p *tab) loaded(passwords ...string) (v visited) {
	p.t.Helper()
	for {
		m := p.receive()
		var e struct {
			RequestID     string `json:"requestId"`
			Type          string
			Response      struct{ Status int }
			AuthChallenge struct{ Scheme, Realm string }
		}
		if m.Params != nil {
			if err := json.Unmarshal(m.Params, &e); err != nil {
				p.t.Fatal(err)
			}
		}
		switch m.Method {
		case "Fetch.requestPaused":
			p.send(p.session, "Fetch.continueRequest", map[string]any{"requestId": e.RequestID})
		case "Fetch.authRequired":
			v.asked = append(v.asked, e.AuthChallenge.Scheme+" "+e.AuthChallenge.Realm)
			answer := map[string]any{"response": "CancelAuth"}
			if len(passwords) > 0 {
				user, password, _ := strings.Cut(passwords[0], ":")
				answer, passwords = map[string]any{"response": "ProvideCredentials", "username": user, "password": password}, passwords[1:]
			}
			p.send(p.session, "Fetch.continueWithAuth", map[string]any{"requestId": e.RequestID, "authChallengeResponse": answer})
		case "Network.responseReceived":
			if e.Type == "Document" {
				v.status = e.Response.Status
			}
		case "Page.loadEventFired":
			v.text = p.evaluate("document.documentElement.innerText")
			return v
		}
	}
}

// evaluate returns the value of an expression in the page.
func (p *tab) evaluate(expression string) string {
	p.t.Helper()
	value, _ := p.call(p.session, "Runtime.evaluate", map[string]any{"expression": expression})["result"].(map[string]any)
	return fmt.Sprint(value["value"])
}
