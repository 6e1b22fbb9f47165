package claim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

// Two kinds that exist only in these tests: the package knows no kind by its name.
var (
	wish  = &Kind{APIVersion: "test.example/v1", Name: "Wish", TLS: "spec.secrets"}
	order = &Kind{APIVersion: "test.example/v2", Name: "Order", TLS: "spec.certificates"}
)

// parse makes an Owner from a line: its kind, namespace/name, and creation time in
// seconds, then words:
//
//	host/path      a claim for a prefix; host=/path for an exact path
//	host/path~     the same, compared as text at other controllers
//	host?          an implicit claim
//	!host/path     a path that weir cannot match, with this literal prefix; !host/path~ as text
//	%host/path~    the same of a regular expression of an object with guards
//	tls:host       the object has TLS for the host; tls: alone for every host
//	guards, ofhost, text   the object has guards, of that kind
//	service        the backends of the claims before it have guards
func parse(t *testing.T, line string) *Owner {
	t.Helper()
	words := strings.Fields(line)
	kind := map[string]*Kind{"Wish": wish, "Order": order}[words[0]]
	name, err := config.ParseObjectName(words[1])
	age, err2 := time.ParseDuration(words[2] + "s")
	if kind == nil || err != nil || err2 != nil {
		t.Fatalf("%q: %v, %v", line, err, err2)
	}
	o := &Owner{Kind: kind, Name: name, UID: "u", Created: time.Unix(0, 0).Add(age), TLS: map[string]bool{}}
	for _, w := range words[3:] {
		switch host, isTLS := strings.CutPrefix(w, "tls:"); {
		case isTLS:
			o.TLS[host] = true
		case w == "guards" || w == "ofhost" || w == "text":
			o.Guards = &Guards{By: o.String(), Names: []string{w}, OfHost: w == "ofhost", Text: w == "text"}
		case w == "service":
			for _, c := range o.Claims {
				c.Backend.Guards = &Guards{By: "Service " + name.String(), Names: []string{"of-service"}}
			}
		default:
			o.claim(w)
		}
	}
	for _, c := range o.Claims {
		if !slices.Contains(o.Hosts, c.Host) {
			o.Hosts = append(o.Hosts, c.Host)
		}
	}
	return o
}

// claim adds the claim of one word.
func (o *Owner) claim(w string) {
	c := &Claim{Owner: o, Backend: Backend{Supported: true}}
	w, c.Loose = strings.CutSuffix(w, "~")
	w, refused := strings.CutPrefix(w, "!")
	w, c.Pattern = strings.CutPrefix(w, "%")
	if w, c.Implicit = strings.CutSuffix(w, "?"); c.Implicit {
		w += "/"
	}
	at := strings.IndexByte(w, '/')
	c.Host, c.Path.Value = w[:at], w[at:]
	c.Host, c.Path.Exact = strings.CutSuffix(c.Host, "=")
	c.Written = c.Path.Value
	if refused || c.Pattern {
		c.Written += "[0-9]"
		c.Refusal = &Refusal{Host: c.Host, Written: c.Written, Why: errors.New("is an expression")}
		o.Refusals = append(o.Refusals, c.Refusal)
	}
	o.Claims = append(o.Claims, c)
}

// decide decides about the owners of some lines. It returns one line for each granted
// claim, then one for each event. A closed path has the end " closed", or, if it
// includes all paths that begin with it, "... closed".
func decide(t *testing.T, ownership bool, lines []string) (*Decision, string) {
	t.Helper()
	var owners []*Owner
	for _, l := range lines {
		owners = append(owners, parse(t, l))
	}
	events := event.Set{}
	d := Decide(owners, Options{HostOwnership: ownership, Events: events})
	d.TellRefusals()
	var b strings.Builder
	for _, c := range d.Granted {
		fmt.Fprintf(&b, "%v: %s\n", c.Owner, granted(c))
	}
	for _, e := range events.Sorted() {
		fmt.Fprintf(&b, "%s %s/%s %s: %s\n", e.Object.Kind, e.Object.Namespace, e.Object.Name, e.Reason, e.Message)
	}
	return d, b.String()
}

func granted(c *Claim) string {
	p := c.Served()
	s := c.Host + p.String()
	if c.Implicit {
		s = c.Host + "?"
	}
	if p.Closed {
		s += " closed"
	}
	return s
}

// example has owners, and the expected result of decide.
type example struct {
	title  string
	owners []string
	routes []string
	events []string // for each event a part of its line, in order
}

// check runs examples. The order of the owners must not matter.
func check(t *testing.T, ownership bool, examples []example) {
	t.Helper()
	for _, e := range examples {
		t.Run(e.title, func(t *testing.T) {
			_, got := decide(t, ownership, e.owners)
			lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
			ok := len(lines) == max(1, len(e.routes)+len(e.events))
			for n := 0; ok && n < len(e.routes); n++ {
				ok = lines[n] == e.routes[n]
			}
			for n := 0; ok && n < len(e.events); n++ {
				ok = strings.Contains(lines[len(e.routes)+n], e.events[n])
			}
			if !ok {
				t.Errorf("%s\nbecomes\n%s\nwant\n%s\nand events with\n%s", strings.Join(e.owners, "\n"), got, strings.Join(e.routes, "\n"), strings.Join(e.events, "\n"))
			}
			reversed := slices.Clone(e.owners)
			slices.Reverse(reversed)
			if _, again := decide(t, ownership, reversed); again != got {
				t.Errorf("in another order they become\n%s\nnot\n%s", again, got)
			}
		})
	}
}
