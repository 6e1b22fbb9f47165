package script

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// This file has the locations of a server-snippet, rewrite, and two directives that ingress-nginx's own locations have:
// expires and auth_request_set.

// location reads a location of the host. Such a location forwards nothing, because only ingress-nginx writes proxy_pass.
func (b *builder) location(d directive) error {
	kind, path, err := locationOf(d.words[1:])
	if err != nil {
		return err
	}
	if kind == "~" || kind == "~*" {
		if _, err := Compile(path, kind == "~*"); err != nil {
			return err
		}
	}
	access := b.access
	b.inside, b.access, b.conf = true, nil, b.addConf(Conf{}, -1)
	at, conf := b.conf, Conf{}
	steps, err := b.steps(d.block, &conf, false)
	own := b.access
	b.inside, b.access, b.conf = false, access, 0
	var u *Unsupported
	switch {
	case errors.As(err, &u) && !strings.HasPrefix(u.What, "the directive "):
		return err
	case err != nil:
		return &Unsupported{fmt.Sprintf("location %s with %v", path, err), "keep locations that only deny or return; " + insteadOf["location"]}
	}
	for _, e := range own {
		if _, _, ok := e.Prefix(); !ok {
			return fmt.Errorf("allow or deny of %s", e.Network)
		}
	}
	b.program.Confs[at] = conf
	b.program.Locations = append(b.program.Locations, Location{kind, path, steps, own, at})
	return nil
}

// locationOf reads the words of a location, such as ~* \.php$ or =/status.
func locationOf(words []string) (kind, path string, err error) {
	if len(words) == 2 {
		kind, path = words[0], words[1]
	} else if len(words) == 1 {
		path = words[0]
		for _, k := range []string{"=", "^~", "~*", "~"} {
			if rest, ok := strings.CutPrefix(path, k); ok {
				kind, path = k, rest
				break
			}
		}
	}
	switch {
	case path != "" && (kind == "~" || kind == "~*"):
	case !strings.HasPrefix(path, "/") || kind != "" && kind != "=" && kind != "^~":
		return "", "", fmt.Errorf("the location %q", strings.Join(words, " "))
	}
	return kind, path, nil
}

// expiresOf reads the time of the directive expires; nil: weir does not support it.
func expiresOf(text string) *Expires {
	switch text {
	case "off":
		return &Expires{Off: true}
	case "epoch":
		return &Expires{Expires: "Thu, 01 Jan 1970 00:00:01 GMT", Control: "no-cache"}
	case "max":
		return &Expires{Expires: "Thu, 31 Dec 2037 23:55:55 GMT", Control: "max-age=315360000"}
	}
	digits, negative := strings.CutPrefix(strings.TrimPrefix(text, "+"), "-")
	number := strings.TrimRight(digits, "smhdwMy")
	n, err := strconv.Atoi(number)
	unit, known := map[string]int{"": 1, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600, "M": 30 * 24 * 3600, "y": 365 * 24 * 3600}[digits[len(number):]]
	switch {
	case err != nil || !known || n < 0 || n > int(time.Duration(1<<62)/time.Second)/unit:
		return nil
	case negative && n > 0:
		return &Expires{Control: "no-cache", ForSeconds: -n * unit}
	}
	return &Expires{Control: "max-age=" + strconv.Itoa(n*unit), ForSeconds: n * unit}
}

// Headers reads a snippet that only sets HTTP headers of requests: their names, and their values with variables of nginx. A
// later header replaces an earlier one of the same name. ignored are directives without effect in weir.
func Headers(text string) (headers [][2]string, ignored []string, err error) {
	if len(text) > mostText {
		return nil, nil, fmt.Errorf("more than %d bytes", mostText)
	}
	all, err := (&lexer{text: text}).directives(0)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range all {
		switch name := d.words[0]; {
		case name == "proxy_set_header" && len(d.words) == 3 && SetsOwn(d.words[1], d.words[2]) && d.words[2] == "$proxy_add_x_forwarded_for":
			ignored = append(ignored, name+" "+d.words[1])
		case name == "proxy_set_header" && len(d.words) == 3:
			value := strings.TrimSpace(d.words[2])
			switch {
			case !message.ValidToken([]byte(d.words[1])) || message.Lookup([]byte(d.words[1])).Class() == message.Framing:
				return nil, nil, fmt.Errorf("the HTTP header %s", d.words[1])
			case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }):
				return nil, nil, fmt.Errorf("a control character in %s", d.words[1])
			}
			headers = slices.DeleteFunc(headers, func(h [2]string) bool { return strings.EqualFold(h[0], d.words[1]) })
			headers = append(headers, [2]string{d.words[1], value})
		case slices.Contains(without, name):
			ignored = append(ignored, name)
		default:
			return nil, nil, errUnknown(d)
		}
	}
	return headers, ignored, nil
}

// AnswersOf returns the HTTP headers, in lower case, that auth_request_set reads in a snippet.
func AnswersOf(text string) (names []string) {
	if !strings.Contains(text, "auth_request_set") {
		return nil
	}
	all, _ := (&lexer{text: text}).directives(0)
	for _, d := range all {
		if d.words[0] == "auth_request_set" && len(d.words) == 3 {
			if name, ok := answerOf(d.words[2]); ok && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// answerOf returns the HTTP header that a value of auth_request_set reads.
func answerOf(value string) (name string, ok bool) {
	if strings.EqualFold(value, "$upstream_status") {
		return AnswerStatus, true
	}
	if cookie, ok := strings.CutPrefix(value, "$upstream_cookie_"); ok && cookie != "" && strings.Trim(cookie, nameChars) == "" {
		return AnswerCookie + cookie, true
	}
	name, ok = strings.CutPrefix(strings.ToLower(value), "$upstream_http_")
	return strings.ReplaceAll(name, "_", "-"), ok && name != "" && strings.Trim(name, nameChars) == ""
}

// answer reads auth_request_set. Ingress-nginx's locations have such directives of their own, so nginx inherits none of the
// host.
func (b *builder) answer(d directive) error {
	if len(d.words) != 3 || !strings.HasPrefix(d.words[1], "$") {
		return errUnknown(d)
	}
	name := strings.ToLower(d.words[1][1:])
	of, ok := answerOf(d.words[2])
	if !ok {
		return errUnknown(d)
	}
	if err := b.checkSet(name); err != nil && (name != "auth_cookie" || of != "set-cookie") {
		return err
	}
	if n := b.variable(name); !b.host {
		b.program.Answers = append(b.program.Answers, Answer{n, of})
	}
	return nil
}

// rewrite reads the directive rewrite. A rewrite to a path needs the flag break: without it, and with the flag last,
// nginx looks for another location, which may belong to another Ingress with other guards.
func (b *builder) rewrite(d directive) (s *Step, err error) {
	if len(d.words) < 3 || len(d.words) > 4 {
		return nil, errUnknown(d)
	}
	s = &Step{Kind: Rewrite, Match: d.words[1], KeepQuery: true}
	if _, err = Compile(s.Match, false); err != nil {
		return nil, err
	}
	to := d.words[2]
	if rest, ends := strings.CutSuffix(to, "?"); ends {
		to, s.KeepQuery = rest, false
	}
	if s.Text, err = b.value(d, to); err != nil {
		return nil, err
	}
	flag := ""
	if len(d.words) == 4 {
		flag = d.words[3]
	}
	whole := strings.HasPrefix(to, "http://") || strings.HasPrefix(to, "https://") || strings.HasPrefix(to, "$scheme")
	switch {
	case flag == "permanent":
		s.Status = 301
	case flag == "redirect", whole:
		s.Status = 302
	case !strings.HasPrefix(to, "/"):
		return nil, &Unsupported{fmt.Sprintf("rewrite to %q, which is no path", to), "write a path with a slash at its beginning, or a URL"}
	case b.host && !b.inside && (flag == "" || flag == "last" || flag == "break"):
		b.program.Moves, s.GoOn = true, flag == ""
	case flag == "last" || flag == "":
		with := "without a flag"
		if flag != "" {
			with = "with the flag last"
		}
		return nil, &Unsupported{"rewrite " + with + ", after which nginx looks for the location of the new path", "write the flag break if the Service of this path serves the new path as well; otherwise " + rewritePath}
	case flag != "break" || b.host:
		return nil, errUnknown(d)
	}
	return s, nil
}

// ErrMoves is why a program cannot serve a host on which a rewrite may lead to another path.
var ErrMoves = &Unsupported{"rewrite for a whole host, after which nginx looks for the location of the new path, and the host has other paths than /", rewritePath}

// rewritePath is what to write instead of a rewrite to another location.
const rewritePath = "write an Ingress with the old path, the Service of the new path and rewrite-target; or write the flag redirect or permanent, with which clients request the new path"
