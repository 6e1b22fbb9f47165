package script

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// show writes a program in one line.
func show(p *Program) string {
	var b strings.Builder
	if len(p.Host) > 0 {
		fmt.Fprintf(&b, "host[%s] ", showSteps(p.Host))
	}
	for _, l := range p.Locations {
		fmt.Fprintf(&b, "location%s %s[%s %v]%d ", l.Kind, l.Path, showSteps(l.Steps), l.Access, l.Conf)
	}
	b.WriteString(showSteps(p.Location))
	for _, a := range p.Answers {
		fmt.Fprintf(&b, " answer %d=%s", a.Variable, a.Of)
	}
	for i, c := range p.Confs {
		for _, e := range c.Request {
			fmt.Fprintf(&b, " %d:request %s=%s", i, e.Name, showText(e.Value))
		}
		for _, e := range c.Response {
			fmt.Fprintf(&b, " %d:%s %s=%s", i, [...]string{"add", "always", "replace", "remove", "hide"}[e.Kind], e.Name, showText(e.Value))
		}
		if c.Expires != nil {
			fmt.Fprintf(&b, " %d:expires %+v", i, *c.Expires)
		}
		if c.Type != "" {
			fmt.Fprintf(&b, " %d:type %s", i, c.Type)
		}
	}
	for _, r := range p.Access {
		fmt.Fprintf(&b, " %v %s", map[bool]string{true: "allow", false: "deny"}[r.Allow], r.Network)
	}
	if len(p.Ignored) > 0 {
		fmt.Fprintf(&b, " ignored %v", p.Ignored)
	}
	return strings.TrimSpace(b.String())
}

func showText(t Text) string {
	var b strings.Builder
	for _, p := range t {
		if b.WriteString(p.Text); p.Variable != "" {
			b.WriteString("<" + p.Variable + ">")
		}
	}
	return b.String()
}

func showSteps(all []Step) string {
	var out []string
	for _, s := range all {
		switch s.Kind {
		case Set:
			out = append(out, fmt.Sprintf("set %d=%s", s.Variable, showText(s.Text)))
		case If:
			c := s.Condition
			out = append(out, fmt.Sprintf("if %s%s%s%s {%s}%d", showText(c.Of), c.Operator, showText(c.Value), c.Match, showSteps(s.Block), s.Conf))
		case Return:
			out = append(out, fmt.Sprintf("return %d %s", s.Status, showText(s.Text)))
		case Rewrite:
			out = append(out, fmt.Sprintf("rewrite %d %s %s %v", s.Status, s.Match, showText(s.Text), s.KeepQuery))
		case Break:
			out = append(out, "break")
		}
	}
	return strings.Join(out, "; ")
}

func TestParse(t *testing.T) {
	f := func(location, want string) {
		t.Helper()
		p, err := Parse("", location, map[string]string{"namespace": "shop"})
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = show(p)
		}
		if got != want {
			t.Errorf("%s\nis   %s\nwant %s", location, got, want)
		}
	}
	f("", "")
	f("# deny all;\n", "")
	f("add_header X-A b;", "0:add X-A=b")
	f("add_header X-A \"b; c\" always; add_header\n  X-C 'd\\'e' ;", "0:always X-A=b; c 0:add X-C=d'e")
	f("add_header X-Uri $uri$is_args$args; add_header X-N \"${namespace}-$http_x_a\";", "0:add X-Uri=<normal_path><is_args><query> 0:add X-N=shop-<header.x-a>")
	f(`proxy_set_header X-Start "t=${msec}";`, "0:request X-Start=t=<msec>")
	f("set $msec 1;", "error: set of the variable $msec")
	f(`more_set_headers "X-A: b" 'X-C:d' "X-E";`, "0:replace X-A=b 0:replace X-C=d 0:replace X-E=")
	f("more_set_headers -s 404 'X-A: b';", "error: the option -s of more_set_headers")
	f("more_clear_headers X-A 'X-B-*';", "0:remove X-A= 0:remove X-B-*=")
	f("more_clear_headers *;", "error: more_clear_headers of every HTTP header")
	f("proxy_hide_header X-Powered-By;", "0:hide X-Powered-By=")
	f("proxy_set_header X-A b; proxy_set_header Accept-Encoding \"\";", "0:request X-A=b 0:request Accept-Encoding=")
	f("proxy_set_header Host $host; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection 'upgrade';", "")
	f("proxy_set_header X-Forwarded-Proto https;", "ignored [proxy_set_header X-Forwarded-Proto]")
	f("proxy_set_header Host inside.example;", "error: proxy_set_header Host")
	f("proxy_set_header X-Real-IP $http_x_real_ip;", "error: proxy_set_header X-Real-IP")
	f("proxy_set_header x_forwarded_for $http_x_a;", "error: proxy_set_header x_forwarded_for")
	f("proxy_set_header X-SSL-Client-S-DN $http_x_a;", "error: proxy_set_header X-SSL-Client-S-DN")
	f("proxy_set_header 'X A' b;", "error: the HTTP header X A, which is no name of an HTTP header")
	f("add_header Content-Length 5;", "error: the HTTP header Content-Length, which only weir itself sets")
	f("add_header X-A \"b\\nX-B: c\";", "error: a control character in add_header")
	f("add_header X-A $server_name;", "error: the variable $server_name")
	f("add_header X-A;", "error: the directive add_header")
	f("add_header ETag b;", "error: add_header of the HTTP header ETag")
	f("gzip on; proxy_cache_valid 200 1m; proxy_ssl_verify off; client_max_body_size 8m;", "ignored [client_max_body_size gzip proxy_cache_valid]")
	f("proxy_ssl_verify on;", "error: the directive proxy_ssl_verify")
	f("allow 10.0.0.0/8; deny all;", "allow 10.0.0.0/8 deny all")
	f("auth_basic off;", "error: the directive auth_basic")
	f("satisfy any;", "error: the directive satisfy")
	f("sub_filter a b;", "error: the directive sub_filter")
	f("location /admin { deny all; }", "error: the directive location")
	f("access_by_lua_block { ngx.exit(403) }", "error: the directive access_by_lua_block")
	f("return 403;", "return 403")
	f("return 200 \"ok\\n\"; default_type text/plain;", "return 200 ok\n 0:type text/plain")
	f("return https://a.example$request_uri;", "return 302 https://a.example<uri>")
	f("return 301 /new?$args;", "return 301 /new?<query>")
	f("return 444;", "error: return with the status 444, which closes the connection")
	f("expires 1h;", "0:expires {Off:false Expires: Control:max-age=3600 ForSeconds:3600}")
	f("expires -1;", "0:expires {Off:false Expires: Control:no-cache ForSeconds:-1}")
	f("expires 0;", "0:expires {Off:false Expires: Control:max-age=0 ForSeconds:0}")
	f("expires off;", "0:expires {Off:true Expires: Control: ForSeconds:0}")
	f("expires modified 1h; expires @15h; expires $a;", "ignored [expires]")
	f("expires 1h; if ($uri) { expires max; }", "if <normal_path> {}1 0:expires {Off:false Expires: Control:max-age=3600 ForSeconds:3600} 1:expires {Off:false Expires:Thu, 31 Dec 2037 23:55:55 GMT Control:max-age=315360000 ForSeconds:0}")
	f("real_ip_header X-A; ignore_invalid_headers off;", "ignored [ignore_invalid_headers real_ip_header]")
	f("auth_request_set $mail $upstream_http_x_mail; proxy_set_header X-Mail $mail;", "answer 0=x-mail 0:request X-Mail=<set.0>")
	f("auth_request_set $auth_cookie $upstream_http_set_cookie; add_header Set-Cookie $auth_cookie;", "answer 0=set-cookie 0:add Set-Cookie=<set.0>")
	f("auth_request_set $auth_cookie $upstream_http_x;", "error: set of the variable $auth_cookie")
	f("auth_request_set $host $upstream_http_x;", "error: set of the variable $host")
	f("auth_request_set $a $upstream_status; add_header A $a;", "answer 0=:status 0:add A=<set.0>")
	f("auth_request_set $a $upstream_cookie_B; add_header A $a;", "answer 0=:cookie:B 0:add A=<set.0>")
	f("auth_request_set $a $sent_http_b;", "error: the directive auth_request_set")
	f("access_by_lua_block {\n  if ngx.var.name_upstream_1 ~= \"\" then\n    ngx.header[\"Set-Cookie\"] = \"name_1=\" .. ngx.var.name_upstream_1 .. ngx.var.auth_cookie:match(\"(; .*)\")\n  end\n}\nadd_header A b;", "0:add A=b")
	f("access_by_lua_block { if ngx.var.a ~= \"\" then ngx.exit(403) end }", "error: the directive access_by_lua_block")
	f(`location /.well-known/matrix/server { return 200 '{"m.server": "a.example:443"}'; }`, "error: the directive location")
	f("if ($uri) { auth_request_set $a $upstream_http_x; }", "error: auth_request_set within an if")
	f("return 99;", "error: return with the status 99")
	f("return 301;", "error: return with the status 301")
	f("rewrite ^/old$ /new permanent;", "rewrite 301 ^/old$ /new true")
	f("rewrite ^/(.*)$ https://a.example/$1? redirect;", "rewrite 302 ^/(.*)$ https://a.example/<group.1> false")
	f("rewrite (.*) https://$host$1;", "rewrite 302 (.*) https://<host><group.1> true")
	f("rewrite /api/(.*) /$1 break;", "rewrite 0 /api/(.*) /<group.1> true")
	f("rewrite /a /b;", "error: rewrite without a flag, after which nginx looks for the location of the new path")
	f("rewrite /a /b last;", "error: rewrite with the flag last, after which nginx looks for the location of the new path")
	f("rewrite /a /b other;", "error: the directive rewrite")
	f("rewrite /a b break;", "error: rewrite to \"b\", which is no path")
	f("rewrite /a(?!b) /b break;", "error: the regular expression \"/a(?!b)\" with a lookahead (\"(?!\")")
	f("rewrite /a( /b break;", "error: the invalid regular expression \"/a(\" (missing closing ) in \"/a(\")")
	f("set $a b; set $c \"$a-$http_x\"; add_header X-A $c;", "set 0=b; set 1=<set.0>-<header.x> 0:add X-A=<set.1>")
	f("set $host b;", "error: set of the variable $host")
	f("set $proxy_upstream_name b;", "error: set of the variable $proxy_upstream_name")
	f("set $namespace b;", "error: set of the variable $namespace")
	f(`if ($http_x_secret != "yes") { return 403; }`, "if <header.x-secret>!=yes {return 403 }0")
	f(`if ( $request_method ~* ^(put|post)$ ) { set $x 1; return 405; }`, "if <method>~*^(put|post)$ {set 0=1; return 405 }0")
	f("if ($http_cookie){return 403;}", "if <header.cookie> {return 403 }0")
	f(`if ($uri ~ "\.php$") { add_header X-A b; more_clear_headers X-C; } add_header X-D e;`, `if <normal_path>~\.php$ {}1 0:add X-D=e 1:add X-A=b 1:remove X-C=`)
	f(`add_header X-D e; if ($uri) { more_set_headers "X-A: b"; }`, "if <normal_path> {}1 0:add X-D=e 1:add X-D=e 1:replace X-A=b")
	f("if ($a = b) { return 403; }", "error: the variable $a")
	f("if (-f $request_filename) { return 403; }", "error: the condition (-f $request_filename)")
	f("if ($host = b { return 403; }", "error: an if without a condition in parentheses")
	f("if ($host = b) { if ($host = c) { return 403; } }", "error: an if within an if")
	f("if ($host = b) { proxy_pass http://a; }", "error: proxy_pass within an if")
	f("if ($host = b) { allow all; }", "error: allow within an if")
	f("if ($host = b) { break; }", "if <host>=b {break}0")
	f("}", "error: a brace in the wrong place")
	f("if ($host = b) { return 403;", "error: a brace that is not closed")
	f("return 403", `error: no semicolon at the end of "return"`)
	f(`add_header A "b`, "error: a quotation mark that is not closed")
	f(`add_header A "b"c;`, `error: text behind the quotation mark of "b"`)
	f(`"deny" all;`, "deny all")
	f(strings.Repeat("gzip on;", 501), "error: more than 500 directives")
	f(strings.Repeat("#", 65<<10), "error: it is longer than 65536 bytes")
}

// Errors about what snippets often have say what to write instead.
func TestInstead(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		_, err := Parse("", text, nil)
		var u *Unsupported
		if !errors.As(err, &u) || !strings.Contains(u.Instead, want) {
			t.Errorf("%s: %v, %+v", text, err, u)
		}
	}
	f("rewrite /a /b last;", "flag break if the Service of this path serves the new path as well; otherwise write an Ingress with the old path")
	f("rewrite /a b;", "slash")
	f("rewrite /(?!a) /b break;", "without the lookahead")
	f("if ($uri ~ [) { return 403; }", "syntax of RE2")
	f("location /a { deny all; }", "an Ingress of its own")
	f("proxy_set_header X-Real-IP a;", "only weir sets")
	f("proxy_set_header Host a;", "upstream-vhost")
	f("proxy_set_header X-SSL-Client-S-DN $ssl_client_s_dn;", "ssl-client-subject-dn")
	for name := range insteadOf {
		f(name+" a;", insteadOf[name])
	}
}

// What nginx inherits from the server's level.
func TestParseServer(t *testing.T) {
	f := func(server, location, want string) {
		t.Helper()
		p, err := Parse(server, location, map[string]string{"namespace": "shop"})
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			got = show(p)
		}
		if got != want {
			t.Errorf("%s and %s\nis   %s\nwant %s", server, location, got, want)
		}
	}
	f("add_header X-A b;", "", "0:add X-A=b")
	f("add_header X-A b; more_set_headers 'X-S: t';", "add_header X-C d;", "0:replace X-S=t 0:add X-C=d")
	f("set $a b; if ($host = c) { return 301 https://d$request_uri; }", "add_header X-A $a;", "host[set 0=b; if <host>=c {return 301 https://d<uri>}0]  0:add X-A=<set.0>")
	f("deny 10.0.0.1;", "", "deny 10.0.0.1")
	f("deny 10.0.0.1;", "allow all;", "allow all")
	f("proxy_set_header X-A b;", "", "ignored [proxy_set_header]")
	f("rewrite /a /b break;", "", "host[rewrite 0 /a /b true]")
	f("if ($namespace) { return 403; } add_header A $namespace;", "", "host[if  {return 403 }0]  0:add A=shop") // its locations set it later
	f("auth_request_set $a $upstream_http_x;", "add_header X-A $a;", "0:add X-A=<set.0>")
	f("if ($host = c) { add_header A b; }", "", "error: add_header within an if")
	f("deny 10.0.0.1; location /a { deny all; } location = /b { return 301 /c; }", "", "location /a[ [{false all}]]1 location= /b[return 301 /c [{false 10.0.0.1}]]2  deny 10.0.0.1")
	f(`location ~* \.php$ { return 403; } location ^~ /x/ { if ($uri) { return 404; } }`, "", `location~* \.php$[return 403  []]1 location^~ /x/[if <normal_path> {return 404 }2 []]2`)
	f("add_header A b; location =/c { add_header C d; return 200 ok; }", "add_header E f;", "location= /c[return 200 ok []]1  0:add E=f 1:add C=d")
	f("add_header A b; location /c { return 200 ok; }", "", "location /c[return 200 ok []]1  0:add A=b 1:add A=b")
	for _, text := range []string{"proxy_pass http://a;", "root /srv;", "try_files $uri =404;", "auth_basic off;", "location /b { return 403; }"} {
		if _, err := Parse("location /a { "+text+" }", "", nil); err == nil || !strings.Contains(err.Error(), "location /a with") && !errors.As(err, new(*Unsupported)) {
			t.Errorf("a location with %s: %v", text, err)
		}
	}
	f("location @named { return 403; }", "", `error: the location "@named"`)
	f("location ~ /a(?!b) { return 403; }", "", "error: the regular expression \"/a(?!b)\" with a lookahead (\"(?!\")")
	f("location /a { deny office; }", "", "error: allow or deny of office")
	f("if ($uri) { location /a { deny all; } }", "", "error: the directive location")
}

func TestWhatProgramsDo(t *testing.T) {
	f := func(host, location string, refuses, does, ofHost bool) {
		t.Helper()
		p, err := Parse(host, location, nil)
		if err != nil || p.MayRefuse() != refuses || p.Does() != does || p.OfHost != ofHost {
			t.Errorf("%q and %q: %+v, %v", host, location, p, err)
		}
	}
	f("return 403;", "", true, true, true)
	f("", "return 403;", true, true, true)
	f("", "add_header A b;", false, true, true)
	f("deny all;", "gzip on;", false, false, true)
	f("deny all;", "allow all;", false, false, false)
}

// No snippet makes Parse panic.
func FuzzParse(f *testing.F) {
	f.Add("if ($uri ~ \"a\") { return 403; } add_header A $1;", "set $a \"${host}\";")
	f.Add("location ~ ^/a { deny all; expires 1h; }", "auth_request_set $a $upstream_http_b; add_header A $a;")
	f.Add("more_set_headers 'A: b' # c", "rewrite ^/(.*) /$1 break;}")
	f.Fuzz(func(t *testing.T, server, location string) {
		if p, err := Parse(server, location, nil); err == nil && len(p.Confs) == 0 {
			t.Error("there are no changes of headers")
		}
		AnswersOf(location)
		if headers, _, err := Headers(location); err != nil && headers != nil {
			t.Error("an error has headers")
		}
	})
}

// TestParseSize has programs that could make gigabytes of one request, and large ones that cannot.
func TestParseSize(t *testing.T) {
	redirects, headers, chain := strings.Builder{}, strings.Builder{}, strings.Builder{}
	for n := range 150 {
		fmt.Fprintf(&redirects, "rewrite ^/old%d/(.*)$ https://new.example/%d/$1 permanent;\nif ($host = h%d.example) { set $site h%d; }\n", n, n, n, n)
		fmt.Fprintf(&headers, "add_header X-H%d \"$scheme://$host\";\n", n)
	}
	chain.WriteString("set $a x;")
	for range 60 {
		chain.WriteString("set $a \"$a$a\";")
	}
	for _, c := range []struct {
		name, host, location string
		fits                 bool
	}{
		{"redirects and conditions", "", redirects.String(), true},
		{"headers with small variables", "", headers.String(), true},
		{"a few variables of the client", "", "set $a $http_a; set $b \"$a $http_b\"; proxy_set_header X-A $b; add_header X-B $request_uri;", true},
		{"a variable that repeats itself", "", chain.String() + " add_header X-A $a;", false},
		{"the same for the host", chain.String(), "", false},
		{"across both", "set $a $uri$uri$uri$uri$uri$uri$uri$uri;", "set $b $a$a$a$a$a$a$a$a; add_header X-A $b;", false},
		{"in blocks", "", "set $a $uri; if ($host = a) { set $a $a$a$a$a$a$a$a$a; } if ($host != b) { set $a $a$a$a$a$a$a$a$a; }", false},
		{"one text", "", "add_header X-A \"" + strings.Repeat("$uri", 1000) + "\";", false},
		{"many headers of responses", "", strings.Repeat("more_set_headers \"X-A: $uri\";", 100), false},
		{"many headers of requests", "", strings.Repeat("proxy_set_header X-A $http_a;", 100), false},
		{"the text of a response", "", "return 200 \"" + strings.Repeat("$request_uri", 100) + "\";", false},
		{"a text to compare with", "", "if ($host = \"" + strings.Repeat("$uri", 100) + "\") { return 403; }", false},
		{"groups of a rewrite", "", "rewrite ^(.*)$ /" + strings.Repeat("$1", 100) + " break;", false},
		{"groups of a large variable", "", "set $a $uri$uri$uri$uri$uri$uri$uri$uri$uri$uri; if ($a ~ (.*)) { add_header X-A $1$1$1$1$1$1$1; }", false},
		{"the path after a rewrite", "", "rewrite ^(.*)$ /$1$1$1$1 break; add_header X-A $uri$uri$uri$uri$uri;", false},
		{"an encoded URL", "", "return 302 \"https://a.example/?" + strings.Repeat("$escaped_request_uri", 30) + "\";", false},
	} {
		_, err := Parse(c.host, c.location, nil)
		if c.fits && err != nil || !c.fits && (err == nil || !strings.Contains(err.Error(), "so many variables")) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
