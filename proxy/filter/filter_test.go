package filter

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// exchange is an Exchange that records the calls of filters.
type exchange struct {
	req                     message.Request
	res                     message.Response
	host                    string // empty: that of newExchange
	client                  netip.AddrPort
	trusts                  Trust
	terminated, secure, end bool
	cause                   error
	identified              bool
	length                  int64
	answer                  string
	user                    string
	identity                *Identity
	counted                 []string // by CountGuard
	state                   State
	cert                    *Certificate
	started                 time.Time
	server                  func(*Question) error
	generated               bool
	gone                    chan struct{} // closed when the client goes; nil: it stays
	body                    []byte
	held                    int    // the limit of HoldBody
	guarded                 string // a path that RefusePath refuses
}

func newExchange(method, path string) *exchange {
	x := new(exchange)
	x.req.Method, x.req.Path = x.req.StoreString(method), x.req.StoreString(path)
	x.req.Target, x.req.Host = x.req.Path, x.req.StoreString("App.example.org:80")
	x.req.IsHead = method == http.MethodHead
	return x
}

func (x *exchange) RefusePath(path []byte) *message.Refusal {
	if string(path) != x.guarded {
		return nil
	}
	return &message.Refusal{Status: http.StatusBadRequest, Reason: "guarded_path"}
}

func (x *exchange) Request() *message.Request { return &x.req }
func (x *exchange) Host() string              { return cmp.Or(x.host, "app.example.org") }
func (x *exchange) HoldBody(most int) ([]byte, bool) {
	x.held = most
	return x.body, len(x.body) <= most
}
func (x *exchange) Protocol() string          { return "HTTP/1.1" }
func (x *exchange) KnownLength() int64        { return x.length }
func (x *exchange) Origin() *conn.Origin      { return new(conn.Origin) }
func (x *exchange) Client() netip.AddrPort    { return x.client }
func (x *exchange) Trusts() Trust             { return x.trusts }
func (x *exchange) Terminated() bool          { return x.terminated }
func (x *exchange) OrdersHTTP01() bool        { return false }
func (x *exchange) Secure() bool              { return x.secure }
func (x *exchange) Certificate() *Certificate { return x.cert }
func (x *exchange) RequestID() []byte {
	if !x.identified {
		x.identified = true
		new(Forwarding).Identify(x)
	}
	return x.req.Get(message.XRequestID)
}
func (x *exchange) Refuse(r *message.Refusal) { x.answer = fmt.Sprint(r.Status, " ", r.Reason) }
func (x *exchange) Begin(status int, reason string) *message.Response {
	x.answer = fmt.Sprint(status, " ", reason)
	return &x.res
}
func (x *exchange) Send(body string)         { x.answer += " " + strings.TrimSpace(body) }
func (x *exchange) SetCause(err error)       { x.cause = err }
func (x *exchange) Close()                   { x.end = true }
func (x *exchange) SetUser(name string)      { x.user = name }
func (x *exchange) Ask(q *Question) error    { return x.server(q) }
func (x *exchange) SetIdentity(id *Identity) { x.identity = id }
func (x *exchange) Identity() *Identity      { return x.identity }
func (x *exchange) GuardFailed(guard string, r *message.Refusal, err error) {
	x.answer = fmt.Sprint(r.Status, " ", r.Reason, " ", guard, ": ", err)
}
func (x *exchange) Wait(event <-chan struct{}, patience time.Duration) (happened bool, gone error) {
	select {
	case <-event:
		return true, nil
	case <-x.gone:
		return false, errors.New("gone")
	case <-time.After(patience):
		return false, nil
	}
}
func (x *exchange) Generated() bool    { return x.generated }
func (x *exchange) Started() time.Time { return x.started }
func (x *exchange) State() *State      { return &x.state }
func (x *exchange) CountGuard(guard string, refused bool) {
	x.counted = append(x.counted, fmt.Sprint(guard, " ", refused))
}

// A route without features has no chain, and a nil chain does nothing.
func TestNoFilters(t *testing.T) {
	c := Compile(new(config.Route), nil)
	x := newExchange("GET", "/")
	x.length = 1 << 40
	if c != nil || c.Answer(x) || c.GuardBody(1<<40) != nil {
		t.Errorf("%+v answers %q", c, x.answer)
	}
	c.EditRequest(x)
	c.EditResponse(x, &x.res)
	if len(x.counted) > 0 {
		t.Errorf("guards are counted: %q", x.counted)
	}
	if len(x.req.Fields)+len(x.res.Fields) != 0 {
		t.Error("a nil chain has added headers")
	}
}

// The order of effect does not depend on the order in the file: the redirect comes before the
// limit of the body, because a client that is told to use https has not sent its request yet.
func TestOrderOfEffect(t *testing.T) {
	c := Compile(&config.Route{Name: "r", Backend: "b", MaxBody: 10, Redirect: &config.Redirect{Status: 308, Port: 443}, HSTS: &config.HSTS{MaxAge: time.Hour}}, nil)
	f := func(x *exchange, want string) {
		t.Helper()
		if answered := c.Answer(x); answered != (want != "") || x.answer != want {
			t.Errorf("answered %t with %q, want %q", answered, x.answer, want)
		}
	}
	x := newExchange("POST", "/a")
	x.length = 11
	f(x, "308 redirect this is served over https")
	x = newExchange("POST", "/a")
	x.length, x.secure = 11, true
	f(x, "413 body_too_large")
	x = newExchange("POST", "/a")
	x.length, x.secure = 10, true
	f(x, "")
	if c.GuardBody(10) != nil || c.GuardBody(11) == nil {
		t.Error("the limit of the body is not 10 bytes while it arrives")
	}
	x.terminated = true
	if c.EditResponse(x, &x.res); string(x.res.GetName("strict-transport-security")) != "max-age=3600" {
		t.Errorf("the response has %q", x.res.GetName("strict-transport-security"))
	}
}

// The example in docs/architecture.md is example_test.go, and it works.
func TestExample(t *testing.T) {
	c := new(Chain)
	c.add(robots("noindex"))
	x := newExchange("GET", "/")
	x.res.AddField("x-robots-tag", "all")
	c.EditResponse(x, &x.res)
	if got := string(x.res.GetName("x-robots-tag")); got != "noindex" || len(c.responses) != 1 || len(c.answerers)+len(c.requests)+len(c.bodies) != 0 {
		t.Errorf("the response has %q", got)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "```go\n"+string(example)+"```\n") {
		t.Error("docs/architecture.md shows another example than example_test.go")
	}
}

// What a guard allows and refuses is counted under its key.
func TestGuardsAreCounted(t *testing.T) {
	c := Compile(&config.Route{Backend: "b", MaxBody: 10}, nil)
	x := newExchange("POST", "/")
	c.Answer(x)
	x.length = 11
	c.Answer(x)
	if got := fmt.Sprint(x.counted); got != "[max_body false max_body true]" {
		t.Errorf("counted %s", got)
	}
}
