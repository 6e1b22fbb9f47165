package route

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/weirproxy/weir/proxy/message"
)

// entriesOf reads a match from each line of text. The route is the number of the line. The first
// word is the path: /a is a prefix, =/a exact, /a... is Begins, ~/a an expression, ~*/a one that
// ignores case, ~d/a one that ignores case and matches the decoded path. Before the others, ! means
// every spelling, and @ a path among the expressions. The other words are conditions:
// M=GET,POST H:name=value C:name=value Q:name=value N=192.0.2.0/24,2001:db8::/32. A value that is
// "*" is Present, and one that begins with ~ an expression.
func entriesOf(text string) (entries []Entry[int], err error) {
	for i, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		e := Entry[int]{Route: i, Match: Match{Path: pathOf(words[0])}}
		for _, word := range words[1:] {
			if err := e.addCondition(word); err != nil {
				return nil, err
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func pathOf(text string) (p Path) {
	if rest, ok := strings.CutPrefix(text, "@"); ok {
		p.Among, text = true, rest
	}
	if rest, ok := strings.CutPrefix(text, "!"); ok {
		p.AnySpelling, text = true, rest
	}
	for _, one := range []struct {
		sign string
		kind Kind
	}{{"=", Exact}, {"~*", Expression}, {"~d", Expression}, {"~", Expression}} {
		if rest, ok := strings.CutPrefix(text, one.sign); ok {
			p.Kind, p.Text, p.FoldCase, p.Decoded = one.kind, rest, one.sign == "~*" || one.sign == "~d", one.sign == "~d"
			return p
		}
	}
	if rest, ok := strings.CutSuffix(text, "..."); ok {
		p.Kind, p.Text = Begins, rest
		return p
	}
	p.Text = text
	return p
}

func (m *Match) addCondition(word string) error {
	if rest, ok := strings.CutPrefix(word, "M="); ok {
		m.Methods = strings.Split(rest, ",")
		return nil
	}
	if rest, ok := strings.CutPrefix(word, "N="); ok {
		for text := range strings.SplitSeq(rest, ",") {
			network, err := netip.ParsePrefix(text)
			if err != nil {
				return err
			}
			m.Clients = append(m.Clients, network)
		}
		return nil
	}
	kind, rest, _ := strings.Cut(word, ":")
	name, value, _ := strings.Cut(rest, "=")
	c := Condition{Name: name, Value: value}
	if value == "*" {
		c.Kind, c.Value = Present, ""
	} else if text, ok := strings.CutPrefix(value, "~"); ok {
		c.Kind, c.Value = Like, text
	}
	switch kind {
	case "H":
		m.Headers = append(m.Headers, c)
	case "C":
		m.Cookies = append(m.Cookies, c)
	case "Q":
		m.Query = append(m.Query, c)
	default:
		return fmt.Errorf("the condition %q has no kind", word)
	}
	return nil
}

// requestOf reads a request: method and target on the first line, then headers, and the client
// address behind "from".
func requestOf(text string) *Request {
	lines := strings.Split(text, "\n")
	first, from, _ := strings.Cut(lines[0], " from ")
	method, target, _ := strings.Cut(first, " ")
	path, _, _ := strings.Cut(target, "?")
	req := new(message.Request)
	req.Reset()
	req.Method, req.Target, req.Path = req.StoreString(method), req.StoreString(target), req.StoreString(path)
	for _, line := range lines[1:] {
		if name, value, ok := strings.Cut(line, ":"); ok {
			req.AddField(name, strings.TrimSpace(value))
		}
	}
	client, _ := netip.ParseAddr(from)
	return &Request{Head: req, Client: client}
}

func compiled(t testing.TB, text string) *Paths[int] {
	t.Helper()
	entries, err := entriesOf(text)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Compile(entries)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// found returns the line of text that gets the request, or "".
func found(t testing.TB, text, request string) string {
	t.Helper()
	if i, ok := compiled(t, text).Find(requestOf(request)); ok {
		return strings.TrimSpace(strings.Split(text, "\n")[i])
	}
	return ""
}
