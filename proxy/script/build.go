package script

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/proxy/expression"
	"github.com/weirproxy/weir/proxy/message"
)

// Parse reads the snippets for a host and for a location. constants are variables of nginx that have
// the same value for all requests. The error names the directive that weir does not support.
func Parse(host, location string, constants map[string]string) (*Program, error) {
	if max(len(host), len(location)) > mostText {
		return nil, fmt.Errorf("it is longer than %d bytes", mostText)
	}
	b := &builder{constants: constants, program: &Program{Confs: []Conf{{}}}, variables: map[string]int{}}
	outer, own := &Conf{}, &Conf{}
	if err := b.read(host, true, outer); err != nil {
		return nil, err
	}
	for i := range b.program.Locations {
		if l := &b.program.Locations[i]; l.Access == nil {
			l.Access = b.program.Access
		}
	}
	if err := b.read(location, false, own); err != nil {
		return nil, err
	}
	b.program.Confs[0] = *own
	b.inherit(outer)
	slices.Sort(b.program.Ignored)
	b.program.Ignored = slices.Compact(b.program.Ignored)
	if err := checkSize(b.program); err != nil {
		return nil, err
	}
	return b.program, nil
}

type builder struct {
	constants map[string]string
	program   *Program
	variables map[string]int // of set
	host      bool           // the text is that of a host
	inside    bool           // of a location of the host
	access    []Entry        // of the text, or of the location
	conf      int            // the index of the changes of HTTP headers
	early     bool           // nginx does not know the location yet, and so no constants
	parents   []int          // the index of the outer changes, of each after the first; -1: those of the host
}

func (b *builder) read(text string, host bool, conf *Conf) error {
	all, err := (&lexer{text: text}).directives(0)
	if err != nil {
		return err
	}
	b.host, b.access = host, nil
	steps, err := b.steps(all, conf, false)
	if err != nil {
		return err
	}
	if host {
		b.program.Host, b.program.Access, b.program.OfHost = steps, b.access, true
		return nil
	}
	b.program.Location = steps
	if len(b.access) > 0 {
		b.program.Access, b.program.OfHost = b.access, false
	}
	return nil
}

// inherit adds the changes of the outer level to those of the inner level. nginx inherits add_header
// only if the inner level has none.
func (b *builder) inherit(outer *Conf) {
	b.program.Confs[0].inherit(outer)
	for i, parent := range b.parents { // blocks of if inherit from the location
		from := outer
		if parent >= 0 {
			from = &b.program.Confs[parent]
		}
		b.program.Confs[i+1].inherit(from)
	}
}

func (c *Conf) inherit(outer *Conf) {
	adds := func(e Edit) bool { return e.Kind == Add || e.Kind == AddAlways }
	inherited := slices.Clone(outer.Response)
	if slices.ContainsFunc(c.Response, adds) {
		inherited = slices.DeleteFunc(inherited, adds)
	}
	c.Response = append(inherited, c.Response...)
	c.Type, c.Expires = cmp.Or(c.Type, outer.Type), cmp.Or(c.Expires, outer.Expires)
}

// steps reads directives. Those that change HTTP headers go into conf.
func (b *builder) steps(all []directive, conf *Conf, inIf bool) (steps []Step, err error) {
	for _, d := range all {
		s, err := b.directive(d, conf, inIf)
		if err != nil {
			return nil, err
		}
		if s != nil {
			steps = append(steps, *s)
		}
	}
	return steps, nil
}

// Unsupported is an error about a part of a snippet that weir does not support. Instead is what to write.
type Unsupported struct{ What, Instead string }

func (u *Unsupported) Error() string { return u.What }

// errUnknown is the error of a directive that weir does not support.
func errUnknown(d directive) error {
	what := "the directive " + d.words[0]
	if instead := insteadOf[d.words[0]]; instead != "" {
		return &Unsupported{what, instead}
	}
	return errors.New(what)
}

// insteadOf is what to write instead of directives that many snippets have.
var insteadOf = map[string]string{
	"access_by_lua_block":  "weir sends the client all cookies of the response of auth-url, so code for these is needless; let auth-url decide about access",
	"location":             "write the path into an Ingress of its own, with the annotations for this path",
	"proxy_pass":           "write the Service into the Ingress as its backend; for a server outside of the cluster, a Service of type ExternalName",
	"auth_request":         "write the annotation auth-url",
	"auth_request_set":     "write $upstream_http_NAME as its value, or the annotation auth-response-headers; for cookies, auth-always-set-cookie",
	"auth_basic":           "write the annotation auth-type and those beside it; paths without authentication need an Ingress of their own",
	"auth_basic_user_file": "write the annotation auth-type and those beside it; paths without authentication need an Ingress of their own",
	"limit_req":            "write the annotation limit-rps or limit-rpm",
	"limit_conn":           "write the annotation limit-connections",
	"error_page":           "write the annotations custom-http-errors and default-backend",
	"satisfy":              "write the annotation satisfy",
	"proxy_redirect":       "write the annotations proxy-redirect-from and proxy-redirect-to",
	"proxy_cookie_path":    "write the annotation proxy-cookie-path",
	"proxy_cookie_domain":  "write the annotation proxy-cookie-domain",
	"ssl_verify_client":    "write the annotations auth-tls-secret and auth-tls-verify-client",
	"mirror":               "write the annotation mirror-target",
	"proxy_next_upstream":  "write the annotation proxy-next-upstream",
}

func (b *builder) directive(d directive, conf *Conf, inIf bool) (*Step, error) {
	name := d.words[0]
	b.early = b.host && (b.inside || slices.Contains([]string{"if", "set", "return", "rewrite"}, name))
	switch {
	case name == "if" && d.open:
		if inIf {
			return nil, errors.New("an if within an if")
		}
		return b.ifBlock(d)
	case name == "location" && d.open && b.host && !b.inside && !inIf:
		return nil, b.location(d)
	case d.open:
		return nil, errUnknown(d)
	case name == "set":
		return b.set(d)
	case name == "return":
		return b.returns(d)
	case name == "rewrite":
		return b.rewrite(d)
	case name == "break" && len(d.words) == 1:
		return &Step{Kind: Break}, nil
	}
	if inIf && (name == "allow" || name == "deny" || name == "auth_request_set" || strings.HasPrefix(name, "proxy_")) || inIf && b.host && !b.inside {
		return nil, fmt.Errorf("%s within an if", name)
	}
	return nil, b.edit(d, conf)
}

// edit reads a directive that is no step: it changes HTTP headers, restricts clients, or has no effect.
func (b *builder) edit(d directive, conf *Conf) error {
	words := d.words[1:]
	switch name := d.words[0]; {
	case name == "add_header":
		return b.addHeader(d, conf)
	case name == "more_set_headers":
		return b.moreSet(d, conf)
	case name == "more_clear_headers":
		return b.remove(d, Remove, conf)
	case name == "proxy_hide_header" && len(words) == 1:
		return b.remove(d, Hide, conf)
	case name == "proxy_set_header":
		return b.setRequest(d, conf)
	case name == "default_type" && len(words) == 1 && !strings.ContainsAny(words[0], "$\r\n"):
		conf.Type = words[0]
		return nil
	case name == "expires" && len(words) == 1 && expiresOf(words[0]) != nil:
		conf.Expires = expiresOf(words[0])
		return nil
	case name == "access_by_lua_block" && len(words) == 0 && !b.inside && !b.host:
		return nil // see cookieLua
	case name == "auth_request_set" && !b.inside:
		return b.answer(d)
	case (name == "allow" || name == "deny") && len(words) == 1:
		b.access = append(b.access, Entry{name == "allow", words[0]})
		return nil
	case name == "proxy_ssl_verify" && len(words) == 1 && words[0] == "off":
		return nil // weir does not verify either
	case slices.Contains(without, name), strings.HasPrefix(name, "proxy_cache"):
		b.program.Ignored = append(b.program.Ignored, name)
		return nil
	}
	return errUnknown(d)
}

// without are the directives that restrict no access, and that have no effect in weir: they are about
// logs, sizes, times, compression, the versions of TLS, and whom to trust.
var without = []string{
	"access_log", "charset", "error_log", "expires", "log_not_found", "rewrite_log", "server_tokens", "uninitialized_variable_warn", "etag", "if_modified_since",
	"real_ip_header", "real_ip_recursive", "set_real_ip_from", "ignore_invalid_headers", "underscores_in_headers", "keepalive_requests", "keepalive_time", "reset_timedout_connection",
	"absolute_redirect", "port_in_redirect", "server_name_in_redirect", "resolver", "resolver_timeout",
	"ssl_buffer_size", "ssl_ciphers", "ssl_ecdh_curve", "ssl_prefer_server_ciphers", "ssl_protocols", "ssl_session_cache", "ssl_session_tickets", "ssl_session_timeout", "ssl_stapling", "ssl_stapling_verify",
	"proxy_headers_hash_bucket_size", "proxy_headers_hash_max_size", "proxy_ignore_client_abort", "proxy_socket_keepalive",
	"gzip", "gzip_buffers", "gzip_comp_level", "gzip_disable", "gzip_http_version", "gzip_min_length", "gzip_proxied", "gzip_types", "gzip_vary", "brotli", "brotli_comp_level", "brotli_types",
	"client_body_buffer_size", "client_header_buffer_size", "client_max_body_size", "large_client_header_buffers", "chunked_transfer_encoding",
	"proxy_buffer_size", "proxy_buffering", "proxy_buffers", "proxy_busy_buffers_size", "proxy_http_version", "proxy_max_temp_file_size", "proxy_request_buffering", "proxy_no_cache",
	"client_body_timeout", "client_header_timeout", "keepalive_timeout", "proxy_connect_timeout", "proxy_read_timeout", "proxy_send_timeout", "send_timeout",
	"proxy_pass_header", "proxy_ssl_server_name", "tcp_nodelay", "tcp_nopush", "sendfile", "output_buffers",
}

// text reads a text with variables.
func (b *builder) text(text string) (Text, error) {
	return Split(text, func(name string) (Part, bool) {
		if _, ok := b.constants[name]; ok && b.early && name != serverName {
			return Part{}, true
		}
		if '1' <= name[0] && name[0] <= '9' && len(name) == 1 {
			return Part{Variable: GroupPath + name}, true
		}
		if value, ok := b.constants[name]; ok {
			return Part{Text: value}, true
		}
		if n, ok := b.variables[name]; ok {
			return Part{Variable: VarPrefix + strconv.Itoa(n)}, true
		}
		switch name {
		case "uri", "document_uri":
			return Part{Variable: NormalPath}, true
		case "is_args":
			return Part{Variable: IsArgs}, true
		case "https":
			return Part{Variable: HTTPS}, true
		case "msec":
			return Part{Variable: Msec}, true
		case "literal_dollar":
			return Part{Text: "$"}, true
		}
		v, ok := Variable(name)
		return Part{Variable: v}, ok
	})
}

// value is text for a value of an HTTP header.
func (b *builder) value(d directive, text string) (Text, error) {
	if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return nil, fmt.Errorf("a control character in %s", d.words[0])
	}
	return b.text(strings.TrimSpace(text))
}

// set reads the directive set. A snippet cannot set the variables of nginx and of ingress-nginx.
func (b *builder) set(d directive) (*Step, error) {
	if len(d.words) != 3 || !strings.HasPrefix(d.words[1], "$") {
		return nil, errUnknown(d)
	}
	name := strings.ToLower(d.words[1][1:])
	if err := b.checkSet(name); err != nil {
		return nil, err
	}
	text, err := b.text(d.words[2])
	if err != nil {
		return nil, err
	}
	return &Step{Kind: Set, Variable: b.variable(name), Text: text}, nil
}

// checkSet returns why a snippet cannot set a variable, or nil.
func (b *builder) checkSet(name string) error {
	_, isNginx := Variable(name)
	if isNginx || slices.Contains(reserved, name) || name == "" || strings.Trim(name, nameChars) != "" {
		return fmt.Errorf("set of the variable $%s", name)
	}
	return nil
}

// variable returns the number of a variable.
func (b *builder) variable(name string) int {
	n, known := b.variables[name]
	if !known {
		n = b.program.Variables
		b.variables[name] = n
		b.program.Variables++
	}
	return n
}

// reserved are the variables of nginx and of ingress-nginx that a snippet cannot set, besides those of Variable.
var reserved = []string{"uri", "document_uri", "is_args", "https", "msec", "literal_dollar", "server_name", "server_port", "limit_rate", "namespace", "ingress_name", "service_name", "service_port", "location_path",
	"proxy_upstream_name", "proxy_host", "pass_server_port", "pass_port", "proxy_alternative_upstream_name", "balancer_ewma_score", "cors", "auth_cookie",
	"auth_path", "cache_key", "tmp_cache_key", "target", "redirect_to", "full_x_forwarded_for", "connection_upgrade", "req_id"}

// ifBlock reads a condition, such as ($host = "a").
func (b *builder) ifBlock(d directive) (*Step, error) {
	words := slices.Clone(d.words[1:])
	if len(words) == 0 || !strings.HasPrefix(words[0], "(") || !strings.HasSuffix(words[len(words)-1], ")") {
		return nil, errors.New("an if without a condition in parentheses")
	}
	if words[0] = words[0][1:]; words[0] == "" {
		words = words[1:]
	}
	if len(words) > 0 {
		last := &words[len(words)-1]
		if *last = strings.TrimSuffix(*last, ")"); *last == "" && len(words) > 1 {
			words = words[:len(words)-1]
		}
	}
	c, err := b.condition(words)
	if err != nil {
		return nil, err
	}
	var conf Conf
	block, err := b.steps(d.block, &conf, true)
	if err != nil {
		return nil, err
	}
	s := &Step{Kind: If, Condition: c, Block: block, Conf: b.conf}
	if len(conf.Response) > 0 || conf.Type != "" || conf.Expires != nil {
		s.Conf = b.addConf(conf, b.conf)
	}
	return s, nil
}

// addConf adds changes of HTTP headers within those of another index, and returns their index.
func (b *builder) addConf(c Conf, within int) int {
	b.program.Confs, b.parents = append(b.program.Confs, c), append(b.parents, within)
	return len(b.parents)
}

func (b *builder) condition(words []string) (c Condition, err error) {
	unknown := fmt.Errorf("the condition (%s)", strings.Join(words, " "))
	if len(words) != 1 && len(words) != 3 || !strings.HasPrefix(words[0], "$") {
		return c, unknown
	}
	if c.Of, err = b.text(words[0]); err != nil {
		return c, err
	}
	if _, isConstant := b.constants[strings.ToLower(words[0][1:])]; !isConstant && (len(c.Of) != 1 || c.Of[0].Variable == "") {
		return c, unknown
	}
	if len(words) == 1 {
		return c, nil
	}
	switch c.Operator = words[1]; c.Operator {
	case "=", "!=":
		c.Value, err = b.text(words[2])
	case "~", "~*", "!~", "!~*":
		c.Match = words[2]
		_, err = Compile(c.Match, strings.HasSuffix(c.Operator, "*"))
	default:
		err = unknown
	}
	return c, err
}

// Compile compiles an expression that matches a part of a text, perhaps in any case. Each byte is a character, as in nginx.
func Compile(text string, anyCase bool) (e *Expression, err error) {
	text = string(runes([]byte(text)))
	if anyCase {
		text = "(?i)" + text
	}
	e = new(Expression)
	e.Regexp, _, err = expression.Compile(text, expression.AnywhereNginx)
	var wrong *expression.Error
	if errors.As(err, &wrong) {
		u := &Unsupported{fmt.Sprintf("the regular expression %q with %s", wrong.Text, wrong.Has), wrong.Instead}
		if wrong.Has == "" {
			u = &Unsupported{fmt.Sprintf("the invalid regular expression %q (%s)", wrong.Text, wrong.Wrong), "correct it; " + wrong.Instead}
		}
		err = u
	}
	return e, err
}

// returns reads the directive return.
func (b *builder) returns(d directive) (s *Step, err error) {
	s = &Step{Kind: Return}
	words := d.words[1:]
	switch len(words) {
	case 1:
		if s.Status, err = strconv.Atoi(words[0]); err != nil {
			s.Status = 302 // a URL alone
			s.Text, err = b.value(d, words[0])
		}
	case 2:
		if s.Status, err = strconv.Atoi(words[0]); err == nil {
			if s.Text, err = b.text(words[1]); s.Redirects() && err == nil {
				s.Text, err = b.value(d, words[1])
			}
		}
	default:
		err = errUnknown(d)
	}
	switch {
	case err != nil:
		return nil, err
	case s.Status == 444:
		return nil, &Unsupported{"return with the status 444, which closes the connection", "write return 403"}
	case s.Status < 200 || s.Status > 599 || s.Status == 444 || s.Status == 499, s.Redirects() && len(s.Text) == 0:
		return nil, fmt.Errorf("return with the status %d", s.Status)
	}
	return s, nil
}

// Redirects reports whether the step redirects the request. Then the Text of a Return is a URL.
func (s *Step) Redirects() bool {
	return s.Status >= 301 && s.Status <= 303 || s.Status == 307 || s.Status == 308
}

func (b *builder) addHeader(d directive, conf *Conf) (err error) {
	e := Edit{Kind: Add}
	switch len(d.words) {
	case 3:
	case 4:
		if d.words[3] != "always" {
			return errUnknown(d)
		}
		e.Kind = AddAlways
	default:
		return errUnknown(d)
	}
	e.Name = d.words[1]
	if err = checkResponse(e.Name); err != nil {
		return fmt.Errorf("the HTTP header %s, which %w", e.Name, err)
	}
	if strings.EqualFold(e.Name, "last-modified") || strings.EqualFold(e.Name, "etag") { // nginx replaces these
		return fmt.Errorf("add_header of the HTTP header %s", e.Name)
	}
	if e.Value, err = b.value(d, d.words[2]); err == nil {
		conf.Response = append(conf.Response, e)
	}
	return err
}

// moreSet reads more_set_headers, without its options for statuses and types.
func (b *builder) moreSet(d directive, conf *Conf) error {
	if len(d.words) == 1 {
		return errUnknown(d)
	}
	for _, word := range d.words[1:] {
		if strings.HasPrefix(word, "-") {
			return fmt.Errorf("the option %s of %s", word, d.words[0])
		}
		name, value, _ := strings.Cut(word, ":")
		name = strings.TrimSpace(name)
		if err := checkResponse(name); err != nil {
			return fmt.Errorf("the HTTP header %s, which %w", name, err)
		}
		text, err := b.value(d, value)
		if err != nil {
			return err
		}
		conf.Response = append(conf.Response, Edit{Kind: Replace, Name: name, Value: text})
	}
	return nil
}

// remove reads names of headers of responses, which may end in a star.
func (b *builder) remove(d directive, kind EditKind, conf *Conf) error {
	if len(d.words) == 1 {
		return errUnknown(d)
	}
	for _, name := range d.words[1:] {
		if strings.HasPrefix(name, "-") {
			return fmt.Errorf("the option %s of %s", name, d.words[0])
		}
		name = strings.TrimSuffix(name, ":")
		plain := strings.TrimSuffix(name, "*")
		if plain == "" {
			return fmt.Errorf("%s of every HTTP header", d.words[0])
		}
		if err := checkResponse(plain); err != nil {
			return fmt.Errorf("the HTTP header %s, which %w", name, err)
		}
		conf.Response = append(conf.Response, Edit{Kind: kind, Name: name})
	}
	return nil
}

// setRequest reads proxy_set_header. A header that weir sets itself may only get the value that weir
// sets.
func (b *builder) setRequest(d directive, conf *Conf) error {
	if len(d.words) != 3 {
		return errUnknown(d)
	}
	name, value := d.words[1], d.words[2]
	if SetsOwn(name, value) {
		if value == "https" || value == "443" { // weir sends what the client used
			b.program.Ignored = append(b.program.Ignored, d.words[0]+" "+name)
		}
		return nil
	}
	if err := checkRequest(name); err != nil {
		return err
	}
	text, err := b.value(d, value)
	if err != nil {
		return err
	}
	if b.host { // each location has headers of its own, so nginx inherits none
		b.program.Ignored = append(b.program.Ignored, d.words[0])
		return nil
	}
	conf.Request = append(conf.Request, Edit{Kind: Replace, Name: name, Value: text})
	return nil
}

// own are the HTTP headers of requests that a snippet cannot choose: weir sets them, or they apply only
// to the client's connection. The values mean the same as the value that weir sends.
var own = map[string][]string{
	"connection": {"upgrade", "$connection_upgrade", "$http_connection", "keep-alive", ""},
	"upgrade":    {"$http_upgrade"},
	"host":       {"$host", "$http_host", "$best_http_host"},

	"x-real-ip": {"$remote_addr"}, "x-forwarded-for": {"$remote_addr", "$proxy_add_x_forwarded_for"},
	"x-forwarded-proto": {"$scheme", "$pass_access_scheme", "https"}, "x-forwarded-host": {"$host", "$http_host", "$best_http_host"},
	"x-forwarded-port":   {"$server_port", "$pass_server_port", "443"},
	"x-forwarded-scheme": {"$scheme", "$pass_access_scheme", "https"}, "x-scheme": {"$scheme", "$pass_access_scheme", "https"}, "x-request-id": {"$req_id", "$request_id"},
}

// SetsOwn reports whether a header gets the value that weir sets.
func SetsOwn(name, value string) bool {
	values, known := own[strings.ToLower(name)]
	return known && slices.Contains(values, value)
}

// checkRequest returns why a program cannot set a header of requests, or nil.
func checkRequest(name string) error {
	id := message.Lookup([]byte(name))
	if !message.ValidToken([]byte(name)) {
		return fmt.Errorf("the HTTP header %s, which is no name of an HTTP header", name)
	}
	if id.Class() == message.Passed {
		return nil
	}
	instead := "take it out, because only weir sets this HTTP header"
	switch {
	case id == message.Host:
		instead += "; the annotation upstream-vhost has the host that the Service gets"
	case id == message.ClientCertOther:
		instead += "; with auth-tls-secret it sends ssl-client-verify, ssl-client-subject-dn and ssl-client-issuer-dn, which the application can read"
	}
	return &Unsupported{"proxy_set_header " + name, instead}
}

// checkResponse returns why a program cannot set a header of responses, or nil. The error follows its
// name.
func checkResponse(name string) error {
	switch id := message.Lookup([]byte(name)); {
	case !message.ValidToken([]byte(name)):
		return errors.New("is no name of an HTTP header")
	case id.Class() == message.Framing && id != message.Host:
		return errors.New("only weir itself sets")
	}
	return nil
}
