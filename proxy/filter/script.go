package filter

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
	"github.com/weirproxy/weir/proxy/script"
)

// snippet is the compiled program of the snippets of an Ingress. It has three filters, because
// ingress-nginx does something between its parts: scriptSteps for the host and for the location, and
// scriptHeaders.
type snippet struct {
	host, location []scriptStep
	locations      []scriptLocation
	at             config.Path // the location that ingress-nginx writes for the route
	confs          []scriptConf
	variables      int
	answers        []script.Answer
}

// scriptStep is a compiled script.Step.
type scriptStep struct {
	script.Step
	text      scriptText
	of, value scriptText         // of the condition
	match     *script.Expression // of the condition, or of a rewrite
	block     []scriptStep
}

// scriptConf is a compiled script.Conf.
type scriptConf struct {
	request, response []scriptEdit
	replaced          *message.Names // by request
	media             string
	expires           *script.Expires // nil: none
}

type scriptEdit struct {
	script.Edit
	lower string // the name in lower case, without a star
	value scriptText
}

// scriptRun is the state of a program for one request.
type scriptRun struct {
	variables []string
	groups    []string // of the last expression that matched
	path      []byte   // after a rewrite; nil: there was none
	conf      int
	ended     bool // by break
}

// scriptText is a compiled script.Text.
type scriptText []scriptPart

type scriptPart struct {
	text  string
	value func(b []byte, x Exchange) []byte // nil: text or the fields below count
	set   int                               // 1 + the number of a variable; 0: none
	group int                               // the number of a group; 0: none
	path  bool                              // the normal path
}

// newScript compiles the snippets of a route; nil: they do nothing.
func newScript(c *config.Script) *snippet {
	if c == nil {
		return nil
	}
	p, err := c.Parse()
	if err != nil { // it was checked
		return &snippet{host: []scriptStep{{Step: script.Step{Kind: script.Return, Status: 503}}}, confs: make([]scriptConf, 1)}
	}
	if !p.Does() {
		return nil
	}
	s := &snippet{host: newScriptSteps(p.Host), location: newScriptSteps(p.Location), locations: newScriptLocations(p.Locations), at: c.At, variables: p.Variables, answers: p.Answers}
	for _, c := range p.Confs {
		conf := scriptConf{media: c.Type, expires: c.Expires}
		var names []string
		for _, e := range c.Request {
			conf.request = append(conf.request, newScriptEdit(e))
			names = append(names, e.Name)
		}
		for _, e := range c.Response {
			conf.response = append(conf.response, newScriptEdit(e))
		}
		conf.replaced = message.NewNames(names)
		s.confs = append(s.confs, conf)
	}
	return s
}

func newScriptEdit(e script.Edit) scriptEdit {
	return scriptEdit{e, strings.ToLower(strings.TrimSuffix(e.Name, "*")), newScriptText(e.Value)}
}

func newScriptSteps(all []script.Step) (steps []scriptStep) {
	for _, one := range all {
		s := scriptStep{Step: one, text: newScriptText(one.Text), of: newScriptText(one.Condition.Of), value: newScriptText(one.Condition.Value), block: newScriptSteps(one.Block)}
		match, anyCase := one.Match, false
		if one.Condition.Match != "" {
			match, anyCase = one.Condition.Match, strings.HasSuffix(one.Condition.Operator, "*")
		}
		if match != "" {
			s.match, _ = script.Compile(match, anyCase) // it was checked
		}
		steps = append(steps, s)
	}
	return steps
}

func newScriptText(text script.Text) (all scriptText) {
	for _, p := range text {
		one := scriptPart{text: p.Text}
		switch name := p.Variable; {
		case name == "":
		case name == script.NormalPath:
			one.path = true
		case name == script.IsArgs:
			one.value = func(b []byte, x Exchange) []byte {
				if len(queryOf(x.Request())) > 1 {
					b = append(b, '?')
				}
				return b
			}
		case name == script.HTTPS:
			one.value = func(b []byte, x Exchange) []byte {
				if schemeOf(x) == "https" {
					b = append(b, "on"...)
				}
				return b
			}
		case name == script.Msec:
			one.value = func(b []byte, _ Exchange) []byte {
				now := time.Now().UnixMilli()
				return fmt.Appendf(b, "%d.%03d", now/1000, now%1000)
			}
		case strings.HasPrefix(name, script.VarPrefix):
			n, _ := strconv.Atoi(name[len(script.VarPrefix):])
			one.set = n + 1
		case strings.HasPrefix(name, script.GroupPath):
			one.group, _ = strconv.Atoi(name[len(script.GroupPath):])
		default:
			one.value = valueOf(config.Variable(name))
		}
		all = append(all, one)
	}
	return all
}

func (t scriptText) append(b []byte, x Exchange) []byte {
	return t.appendEscaped(b, x, false)
}

// appendEscaped is append; with escape, decoded texts of the client are percent-encoded.
func (t scriptText) appendEscaped(b []byte, x Exchange, escape bool) []byte {
	run := x.State().run
	for i := range t {
		p := &t[i]
		var decoded []byte
		switch {
		case p.value != nil:
			b = p.value(b, x)
		case p.set > 0 && run != nil:
			b = append(b, run.variables[p.set-1]...)
		case p.group > 0 && run != nil && p.group < len(run.groups):
			decoded = []byte(run.groups[p.group])
		case p.path:
			decoded = run.normalPath(x)
		default:
			b = append(b, p.text...)
		}
		if escape {
			b = message.AppendEscaped(b, decoded)
		} else {
			b = append(b, decoded...)
		}
	}
	return b
}

// normalPath returns the path as nginx compares it; r may be nil.
func (r *scriptRun) normalPath(x Exchange) []byte {
	if r != nil && r.path != nil {
		return r.path
	}
	return message.Leveled(x.Request().Bytes(x.Request().Path))
}

// scriptSteps runs the steps of a host or a location.
type scriptSteps struct {
	of     *snippet
	steps  []scriptStep
	ofHost bool
}

// FilterName returns the key for weir explain.
func (f *scriptSteps) FilterName() string { return "snippet" }

// Answer returns true if a step, or a location of the host, has answered the request.
func (f *scriptSteps) Answer(x Exchange) bool {
	r := f.of.begin(x)
	r.ended = false
	return f.of.run(f.steps, x, r) || f.ofHost && f.of.locate(x, r)
}

// begin returns the state of the program for a request.
func (s *snippet) begin(x Exchange) *scriptRun {
	state := x.State()
	if state.run == nil {
		state.run = &scriptRun{variables: make([]string, s.variables)}
	}
	return state.run
}

func (s *snippet) run(steps []scriptStep, x Exchange, r *scriptRun) (answered bool) {
	for i := range steps {
		step := &steps[i]
		switch step.Kind {
		case script.Set:
			r.variables[step.Variable] = string(step.text.append(nil, x))
		case script.If:
			if step.holds(x, r) {
				r.conf = step.Conf
				answered = s.run(step.block, x, r)
			}
		case script.Return:
			s.answer(step, x, r)
			return true
		case script.Rewrite:
			answered = s.rewrite(step, x, r)
		case script.Break:
			r.ended = true
		}
		if answered || r.ended {
			return answered
		}
	}
	return false
}

// holds reports whether the condition of the step holds.
func (s *scriptStep) holds(x Exchange, r *scriptRun) bool {
	of := s.of.append(nil, x)
	switch s.Condition.Operator {
	case "":
		return len(of) > 0 && string(of) != "0"
	case "=":
		return string(of) == string(s.value.append(nil, x))
	case "!=":
		return string(of) != string(s.value.append(nil, x))
	}
	found := r.find(s.match, of)
	return found != strings.HasPrefix(s.Condition.Operator, "!")
}

// find compares a text with an expression, and remembers the groups if it matches.
func (r *scriptRun) find(e *script.Expression, text []byte) bool {
	groups := e.Groups(text, r.groups)
	if groups == nil {
		return false
	}
	r.groups = groups
	return true
}

// answer answers the request with return.
func (s *snippet) answer(step *scriptStep, x Exchange, r *scriptRun) {
	if step.Redirects() {
		s.redirect(step.Status, step.text.append(nil, x), x)
		return
	}
	res := x.Begin(step.Status, "snippet")
	if message.BodyForbidden(step.Status) || len(step.text) == 0 {
		for i := range res.Fields {
			res.Fields[i].Dropped = true
		}
		x.Send("")
		return
	}
	for i := range res.Fields {
		if message.EqualFold(res.Name(i), "content-type") {
			res.Fields[i].Dropped = true
		}
	}
	media := s.confs[r.conf].media
	if media == "" {
		media = "text/html" // the default_type of ingress-nginx
	}
	res.AddField("Content-Type", media)
	x.Send(string(step.text.append(nil, x)))
}

// redirect redirects to a URL, or to a path of the host.
func (s *snippet) redirect(status int, to []byte, x Exchange) {
	if bytes.HasPrefix(to, slash) {
		to = append(appendHost(append([]byte(schemeOf(x)), "://"...), x), to...)
	}
	if len(to) == 0 || !isFieldValue(to) {
		x.Refuse(refuseRewrite)
		return
	}
	to = message.AppendURL(nil, to) // it may have a fragment. nginx sends decoded paths as they are, and browsers encode them
	res := x.Begin(status, "snippet")
	res.AddSpans(res.StoreString("Location"), res.Store(to))
	x.Send("this has moved\n")
}

// rewrite redirects the request, or gives the endpoint another path, if the path matches.
func (s *snippet) rewrite(step *scriptStep, x Exchange, r *scriptRun) (answered bool) {
	if !r.find(step.match, r.normalPath(x)) {
		return false
	}
	query := bytes.TrimPrefix(queryOf(x.Request()), question)
	if !step.KeepQuery {
		query = nil
	}
	to := step.text.appendEscaped(nil, x, true)
	if len(query) > 0 {
		separator := byte('?')
		if bytes.IndexByte(to, '?') >= 0 {
			separator = '&'
		}
		to = append(append(to, separator), query...)
	}
	if step.Status != 0 {
		s.redirect(step.Status, to, x)
		return true
	}
	req := x.Request()
	if req.Rewrite(req.Store(to)) != nil {
		x.Refuse(refuseRewrite)
		return true
	}
	path, _, _ := bytes.Cut(to, question)
	r.path = slices.Clone(message.Leveled(path))
	r.ended = !step.GoOn
	return false
}

// scriptHeaders changes HTTP headers.
type scriptHeaders struct{ of *snippet }

// FilterName returns the key for weir explain.
func (f *scriptHeaders) FilterName() string { return "snippet" }

// EditRequest sets headers for the endpoint.
func (f *scriptHeaders) EditRequest(x Exchange) {
	if len(f.of.answers) > 0 {
		f.of.readAnswers(x)
	}
	conf, req := &f.of.confs[0], x.Request()
	if len(conf.request) == 0 {
		return
	}
	values := make([][]byte, len(conf.request)) // a value may name a header that is replaced
	for i := range conf.request {
		values[i] = conf.request[i].value.append(nil, x)
	}
	f.EditTrailers(&req.Head)
	for i := range conf.request {
		if v := trimmed(values[i]); len(v) > 0 && isFieldValue(v) {
			req.AddSpans(req.StoreString(conf.request[i].Name), req.Store(v))
		}
	}
}

// EditTrailers removes headers that the program sets.
func (f *scriptHeaders) EditTrailers(h *message.Head) {
	replaced := f.of.confs[0].replaced
	if replaced == nil {
		return
	}
	for i := range h.Fields {
		if replaced.HasAlike(h.Name(i)) {
			h.Fields[i].Dropped = true
		}
	}
}

// EditResponse changes headers of responses. As in nginx, add_header comes after all others.
func (f *scriptHeaders) EditResponse(x Exchange, res *message.Response) {
	conf := &f.of.confs[0]
	if run := x.State().run; run != nil {
		conf = &f.of.confs[run.conf]
	}
	for i := range conf.response {
		if e := &conf.response[i]; e.Kind == script.Hide && !x.Generated() {
			e.remove(res)
		}
	}
	for i := range conf.response {
		if e := &conf.response[i]; e.Kind == script.Remove || e.Kind == script.Replace {
			e.remove(res)
			e.write(x, res)
		}
	}
	if conf.expires != nil && isGoodStatus(res.Status) {
		setExpires(res, conf.expires)
	}
	for i := range conf.response {
		if e := &conf.response[i]; e.Kind == script.AddAlways || e.Kind == script.Add && isGoodStatus(res.Status) {
			e.write(x, res)
		}
	}
}

func (e *scriptEdit) remove(res *message.Response) {
	star := strings.HasSuffix(e.Name, "*")
	for i := range res.Fields {
		f, name := &res.Fields[i], res.Name(i)
		switch {
		case f.ID.Class() == message.Framing:
		case message.EqualFold(name, e.lower), star && len(name) >= len(e.lower) && message.EqualFold(name[:len(e.lower)], e.lower):
			f.Dropped = true
		}
	}
}

func (e *scriptEdit) write(x Exchange, res *message.Response) {
	if e.Kind == script.Remove {
		return
	}
	if len(e.value) == 1 && e.value[0].text != "" {
		res.AddField(e.Name, e.value[0].text) // it was checked
		return
	}
	if v := trimmed(e.value.append(nil, x)); len(v) > 0 && isFieldValue(v) {
		res.AddSpans(res.StoreString(e.Name), res.Store(v))
	}
}

// trimmed is a value without spaces around it, which belong to no value.
func trimmed(v []byte) []byte { return bytes.Trim(v, " \t") }

// isFieldValue reports whether a value has no control characters. Decoded paths may have some.
func isFieldValue(v []byte) bool {
	return !bytes.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
