package filter

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// runScript runs the snippets for a request, such as "GET /a?b; X-A: c", and returns what weir answers,
// or what the endpoint gets; and then the headers of the response, to which the endpoint adds its own.
func runScript(t *testing.T, server, location, request string, status int, theirs string) (answer, target, headers string) {
	t.Helper()
	words := strings.Split(request, "; ")
	method, path, _ := strings.Cut(words[0], " ")
	x := newExchange(method, "/")
	x.req.Reset()
	x.req.SetMethod(x.req.StoreString(method))
	if err := x.req.SetTarget(x.req.StoreString(path)); err != nil {
		t.Fatal(err)
	}
	x.req.Host = x.req.StoreString("App.test:8080")
	x.with(strings.Join(words[1:], "|"))
	chain := Compile(&config.Route{Backend: "b", Script: &config.Script{Host: server, Location: location}}, nil)
	if chain.Answer(x) {
		answer = x.answer
	} else {
		chain.EditRequest(x)
		x.req.Drop(message.XRequestID)
		answer = strings.Join(shown(&x.req.Head), "|")
		if x.req.Rewritten.Len() > 0 {
			target = string(x.req.Bytes(x.req.Rewritten))
		}
		x.res.Status = status
		for _, line := range strings.Split(theirs, "|") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				x.res.AddField(name, value)
			}
		}
	}
	chain.EditResponse(x, &x.res)
	return answer, target, strings.Join(lines(&x.res.Head), "|")
}

func TestScripts(t *testing.T) {
	f := func(location, request, answer, headers string) {
		t.Helper()
		got, _, h := runScript(t, "", location, request, 200, "")
		if got != answer || h != headers {
			t.Errorf("%s with %s\nis   %q %q\nwant %q %q", location, request, got, h, answer, headers)
		}
	}
	f("return 403;", "GET /", "403 snippet ", "")
	f("return 200 \"hi $remote_addr\";", "GET /", "200 snippet hi unknown", "Content-Type: text/html")
	f("default_type text/plain; return 418 'no';", "GET /", "418 snippet no", "Content-Type: text/plain")
	f("return 204 x;", "GET /", "204 snippet ", "")
	f("return 301 https://$host$request_uri;", "GET /a?b", "301 snippet this has moved", "Location: https://app.test/a?b")
	f("return 302 /new$is_args$args;", "GET /a?b", "302 snippet this has moved", "Location: http://app.test/new?b")
	f("return 302 /new$is_args$args;", "GET /a", "302 snippet this has moved", "Location: http://app.test/new")
	f("return 302 https://a.test$uri;", "GET /%0d%0aX", "400 rewrite", "")
	f("return 302 https://a.test$uri;", "GET /a%20b/%c3%a9", "302 snippet this has moved", "Location: https://a.test/a%20b/%C3%A9")
	f("return 302 https://a.test/#/login;", "GET /", "302 snippet this has moved", "Location: https://a.test/#/login")
	f("rewrite ^/(.*)$ https://a.test/#/$1 permanent;", "GET /b%23c", "301 snippet this has moved", "Location: https://a.test/#/b%23c")
	f("return 302 https://a.test/$http_x;", "GET /; X: b c", "302 snippet this has moved", "Location: https://a.test/b%20c")
	f("return 302 $arg_to;", "GET /", "400 rewrite", "")
	secret := `if ($http_x_secret != "yes") { return 403; }`
	f(secret, "GET /", "403 snippet ", "")
	f(secret, "GET /; X-Secret: yes", "X-Secret: yes", "")
	f(`if ($http_x_a) { return 403; }`, "GET /; X-A: 0", "X-A: 0", "")
	f(`if ($http_x_a) { return 403; }`, "GET /; X-A: 1", "403 snippet ", "")
	admin := `if ($uri ~* "^/admin") { return 404; }`
	for _, path := range []string{"/admin", "/ADMIN/x", "//admin", "/%61dmin", "/a%64min?x"} {
		f(admin, "GET "+path, "404 snippet ", "")
	}
	f(admin, "GET /x/admin", "", "")
	f(`if ($uri !~ \.js$) { return 404; }`, "GET /a.js", "", "")
	f(`if ($uri !~* \.js$) { return 404; }`, "GET /a.css", "404 snippet ", "")
	f(`if ($uri ~ "^/admin$") { return 403; }`, "GET /admin%0a", "403 snippet ", "") // as in nginx
	f("rewrite ^/old$ /new permanent;", "GET /old?a=b", "301 snippet this has moved", "Location: http://app.test/new?a=b")
	f("rewrite ^/old$ /new? permanent;", "GET /old?a=b", "301 snippet this has moved", "Location: http://app.test/new")
	f("rewrite ^/old$ /new permanent;", "GET /old/x", "", "")
	f("rewrite ^/old/(.*)$ https://a.test/$1?c=d redirect;", "GET /old/x%20y?a=b", "302 snippet this has moved", "Location: https://a.test/x%20y?c=d&a=b")
	f("set $a 1; if ($http_x) { set $a \"$a-$http_x\"; } add_header X-A $a;", "GET /; X: b", "X: b", "X-A: 1-b")
	f("set $a 1; if ($http_x) { set $a \"$a-$http_x\"; } add_header X-A $a;", "GET /", "", "X-A: 1")
	f(`set $ip $remote_addr; if ($http_x_f ~ "^([^,]+)") { set $ip $1; } proxy_set_header X-Ip $ip;`, "GET /; X-F: a,b", "X-F: a,b|X-Ip: a", "")
	f("proxy_set_header X-A b; proxy_set_header Accept-Encoding '';", "GET /; x_a: forged; Accept-Encoding: gzip; X-K: k", "X-A: b|X-K: k", "")
	f("proxy_set_header X-A \"$http_x_a!\";", "GET /; X-A: mine", "X-A: mine!", "")
	f("proxy_set_header X-U $uri;", "GET /%0aX-A:b", "", "") // a value never adds a line
	f("add_header X-U $uri; add_header X-E '';", "GET /%0a", "", "")
	f("no_such_directive;", "GET /", "503 snippet ", "") // the conversion of objects refuses it
	f("set $a 1; break; return 403;", "GET /", "", "")
	f("if ($http_x) { break; } return 403;", "GET /; X: 1", "X: 1", "")
	f("add_header X-A $arg_a$cookie_c;", "GET /?b=c&A=1; Cookie: d=e; c=2", "Cookie: d=e", "X-A: 1") // "; " ends the header of this test
}

// add_header adds to responses that are no errors; more_set_headers and the others replace and remove.
// A block of if inherits the changes of its kind that it has none of.
func TestScriptResponses(t *testing.T) {
	f := func(location string, status int, headers string) {
		t.Helper()
		if _, _, h := runScript(t, "", location, "GET /x; X: 1", status, "X-A: theirs|X-B: theirs|X-Powered-By: theirs|X-Powered-With: theirs"); h != headers {
			t.Errorf("%s with %d\nis   %q\nwant %q", location, status, h, headers)
		}
	}
	const theirs, powered = "X-A: theirs|X-B: theirs|X-Powered-By: theirs|X-Powered-With: theirs", "X-Powered-By: theirs|X-Powered-With: theirs"
	f("add_header x-a b;", 200, theirs+"|x-a: b")
	f("add_header x-a b;", 404, theirs)
	f("add_header x-a b always;", 404, theirs+"|x-a: b")
	f("more_set_headers 'x-a: b' 'X-B:';", 500, powered+"|x-a: b")
	f("more_clear_headers x-powered-* X-A;", 500, "X-B: theirs")
	f("more_set_headers 'X-A: b'; proxy_hide_header X-A;", 200, "X-B: theirs|"+powered+"|X-A: b")
	f("add_header X-A b; proxy_hide_header X-A;", 200, "X-B: theirs|"+powered+"|X-A: b")
	f("add_header X-C d; if ($http_x) { add_header X-E f; }", 200, theirs+"|X-E: f")
	f("add_header X-C d; if ($http_x) { more_set_headers 'X-A: f'; }", 200, "X-B: theirs|"+powered+"|X-A: f|X-C: d")
	f("add_header X-C d; if ($http_y) { add_header X-E f; }", 200, theirs+"|X-C: d")
	f("if ($http_x) { add_header X-E f; } if ($uri) { set $a b; }", 200, theirs) // the last if counts
}

// rewrite ... break gives the endpoint another path, before rewrite-target.
func TestScriptRewrites(t *testing.T) {
	f := func(location, path, target, answer string) {
		t.Helper()
		if a, got, _ := runScript(t, "", location, "GET "+path, 200, ""); got != target || a != answer {
			t.Errorf("%s with %s gives %q %q, want %q", location, path, got, a, target)
		}
	}
	f("rewrite /api/(.*) /$1 break;", "/api/x%20y?a=b", "/x%20y?a=b", "")
	f("rewrite /api/(.*) /$1? break;", "/api/x?a=b", "/x", "")
	f("rewrite /api/(.*) /$1?c=d break;", "/api/x?a=b", "/x?c=d&a=b", "")
	f("rewrite /api/(.*) /$1 break; return 403;", "/api/x", "/x", "")
	f("rewrite /api/(.*) /$1 break; return 403;", "/other", "", "403 snippet ")
	f("rewrite ^/a(.*) /$1 break;", "/a/%2fx", "", "400 rewrite") // it would begin with two slashes
	chain := Compile(&config.Route{Backend: "b", Script: &config.Script{Location: "rewrite ^/a$ /b break; if ($uri = /stop) { break; }"}, Rewrite: &config.Rewrite{Path: "/c"}}, nil)
	for path, want := range map[string]string{"/a": "/b", "/d": "/c", "/stop": ""} {
		x := newBrowser("")
		x.req.SetTarget(x.req.StoreString(path))
		if chain.Answer(x); string(x.req.Bytes(x.req.Rewritten)) != want {
			t.Errorf("%s becomes %q, want %q", path, x.req.Bytes(x.req.Rewritten), want)
		}
	}
}

// Locations of a server-snippet take requests from ingress-nginx's own ones as nginx chooses.
func TestScriptLocations(t *testing.T) {
	f := func(server string, at config.Path, request, want string) {
		t.Helper()
		chain := Compile(&config.Route{Backend: "b", Script: &config.Script{Host: server, At: at}, Redirect: &config.Redirect{Port: 443, Status: 308}}, nil)
		method, path, _ := strings.Cut(request, " ")
		x := newExchange(method, "/")
		x.client = netip.MustParseAddrPort("10.0.0.7:1")
		if err := x.req.SetTarget(x.req.StoreString(path)); err != nil {
			t.Fatal(err)
		}
		chain.Answer(x)
		if got := x.answer; got != want && (want != "" || !strings.HasPrefix(got, "308")) {
			t.Errorf("%s at %v: %s is %q, want %q", server, at, request, got, want)
		}
	}
	root, api, exact, pattern := config.Path{Value: "/"}, config.Path{Value: "/api"}, config.Path{Value: "/api", Exact: true}, config.Path{Value: "/api", Expression: true, Decoded: true}
	xmlrpc := "location = /xmlrpc.php { deny all; }"
	f(xmlrpc, root, "GET /xmlrpc.php", "403 snippet ")
	f(xmlrpc, root, "POST //xmlrpc%2ephp?a", "403 snippet ")
	f(xmlrpc, root, "GET /xmlrpc.php/", "")
	f(xmlrpc, root, "GET /XMLRPC.php", "")
	metrics := `location ~* /realms/[^/]+/metrics { return 403; }`
	f(metrics, root, "GET /auth/REALMS/x/metrics/y", "403 snippet ")
	f(metrics, root, "GET /auth/realms/metrics", "")
	f(metrics, config.Path{Value: "/realms/x/metrics"}, "GET /realms/x/metrics", "") // ingress-nginx has an exact location for it
	f(metrics, config.Path{Value: "/realms/x/metrics"}, "GET /realms/x/metrics/", "403 snippet ")
	prefix := "location /api/admin { return 404; }"
	f(prefix, api, "GET /api/admin/x", "404 snippet ")
	f(prefix, root, "GET /api/administrator", "404 snippet ")
	f(prefix, config.Path{Value: "/api/admin/x"}, "GET /api/admin/x/y", "") // the longer prefix
	f("location /api { return 404; }", api, "GET /api/x", "")               // "/api/" is longer
	f("location /api { return 404; }", config.Path{Value: "/api/"}, "GET /api", "404 snippet ")
	f("location ~ /api { return 404; }", config.Path{Value: "/api/"}, "GET /api/", "")
	f("location /api { return 404; }", exact, "GET /api", "")
	f("location /api { return 404; }", pattern, "GET /api/x", "") // expressions go before prefixes
	f("location ^~ /api { return 404; }", pattern, "GET /api/x", "404 snippet ")
	f("location ~ /x { return 404; }", pattern, "GET /api/x", "404 snippet ")
	f("location ~ /x { return 404; }", exact, "GET /api", "")
	bytes := `location ~ "^/[^/]{5}$" { deny all; } location ~ "^/(é.)/\xc3(.)" { return 200 "$1 $2"; }` // é has two bytes
	f(bytes, root, "GET /a%c3%a9bc", "403 snippet ")
	f(bytes, root, "GET /a%c3%a9bcd", "")
	f(bytes, root, "GET /a%ffbcd", "403 snippet ")
	f(bytes, root, "GET /%c3%a9b/%c3%a9", "200 snippet éb \xa9")
	several := `location ^~ /static/ { return 200 s; } location ~ \.php$ { return 200 p; } location ~ ^/static { return 200 e; } location /st { return 200 t; }`
	f(several, root, "GET /static/a.php", "200 snippet s")
	f(several, root, "GET /a.php", "200 snippet p")
	f(several, root, "GET /static", "200 snippet e")
	f(several, root, "GET /st", "200 snippet t")
	f("location /g { allow 10.0.0.0/8; deny all; }", root, "GET /g", "404 snippet ") // there is no such file
	f("location /g { allow 10.0.0.0/8; deny all; }", root, "PUT /g", "405 snippet ")
	f("location /g { deny 10.0.0.7; }", root, "GET /g", "403 snippet ")
	f(`location /.well-known/matrix/server { default_type application/json; return 200 '{"m.server": "a.test:443"}'; }`, root, "GET /.well-known/matrix/server", `200 snippet {"m.server": "a.test:443"}`)
	f("deny 10.0.0.7; location /g { }", root, "GET /g", "403 snippet ")
	f("deny 10.0.0.7; location /g { allow all; }", root, "GET /g", "404 snippet ")
	f("deny 10.0.0.7; location /g { return 200 all; }", root, "GET /g", "200 snippet all") // return comes before deny
	f("location ~ ^/(a|b)/(.*)$ { return 301 https://$1.test/$2; }", root, "GET /b/c", "301 snippet this has moved")
	f("rewrite ^/old(.*)$ /new$1; rewrite ^/new /newer last; return 403; location = /newer { return 200 ok; }", root, "GET /old/x", "200 snippet ok")
	f("rewrite ^/old /new last; location /new { return 200 ok; }", root, "GET /old", "200 snippet ok")
	f("rewrite ^/old /new; return 403;", root, "GET /old", "403 snippet ")
	f("set $a 1; if ($request_method = TRACE) { return 405; } location = /h { if ($a = 1) { return 200 one; } }", root, "GET /h", "200 snippet one")
}

// expires replaces the HTTP headers of the endpoint; add_header comes after it.
func TestScriptExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := func(server, location string, status int, want string) {
			t.Helper()
			if _, _, h := runScript(t, server, location, "GET /", status, "Expires: theirs|Cache-Control: theirs"); h != want {
				t.Errorf("%s %s with %d: %q, want %q", server, location, status, h, want)
			}
		}
		const theirs = "Expires: theirs|Cache-Control: theirs"
		f("", "expires 1h;", 200, "Expires: Sat, 01 Jan 2000 01:00:00 GMT|Cache-Control: max-age=3600")
		f("", "expires -1m;", 200, "Expires: Fri, 31 Dec 1999 23:59:00 GMT|Cache-Control: no-cache")
		f("", "expires 0;", 200, "Expires: Sat, 01 Jan 2000 00:00:00 GMT|Cache-Control: max-age=0")
		f("", "expires epoch;", 304, "Expires: Thu, 01 Jan 1970 00:00:01 GMT|Cache-Control: no-cache")
		f("", "expires max; add_header Cache-Control public;", 200, "Expires: Thu, 31 Dec 2037 23:55:55 GMT|Cache-Control: max-age=315360000|Cache-Control: public")
		f("", "expires 1h;", 404, theirs)
		f("expires 1h;", "expires off;", 200, theirs)
		f("expires epoch;", "", 200, "Expires: Thu, 01 Jan 1970 00:00:01 GMT|Cache-Control: no-cache")
	})
}

// auth_request_set gives snippets what auth-url responds. Without an answer the variables are empty.
func TestScriptAnswers(t *testing.T) {
	c := Compile(&config.Route{Backend: "b", Script: &config.Script{Location: `auth_request_set $mail $upstream_http_x_mail; proxy_set_header X-Mail $mail; add_header X-Seen $mail; if ($mail) { return 403; }`}}, nil)
	for _, id := range []*Identity{nil, {}, {Kept: []IdentityField{{"x-mail", "a@b.test"}, {"x-other", "c"}}}} {
		x := newExchange("GET", "/")
		x.with("X-Mail: forged")
		x.identity, x.res.Status = id, 200
		if c.Answer(x) {
			t.Fatal("the condition holds before there is an answer")
		}
		want := ""
		if id != nil && id.Kept != nil {
			want = "X-Mail: a@b.test"
		}
		c.EditRequest(x)
		c.EditResponse(x, &x.res)
		if got := strings.Join(shown(&x.req.Head), "|"); got != want || strings.Contains(strings.Join(lines(&x.res.Head), "|"), "X-Seen") != (want != "") {
			t.Errorf("with %+v the endpoint gets %q, the client %q", id, got, lines(&x.res.Head))
		}
	}
}

// The variable $msec is the time in seconds, with three decimals.
func TestScriptTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(1023 * time.Millisecond)
		if got, _, _ := runScript(t, "", `proxy_set_header X-Start "t=${msec}";`, "GET /", 200, ""); got != "X-Start: t=946684801.023" {
			t.Errorf("the endpoint gets %q", got)
		}
	})
}

// The steps of the server come before CORS, and those of the location after it.
func TestScriptOrder(t *testing.T) {
	f := func(server, location, answer string) {
		t.Helper()
		chain := Compile(&config.Route{Backend: "b", Script: &config.Script{Host: server, Location: location}, CORS: &config.CORS{Origins: []string{"*"}, AsNginx: true},
			Redirect: &config.Redirect{Port: 443, Status: 308}, Clients: &config.Clients{Allow: nil, Deny: nil}}, nil)
		for method, want := range map[string]string{"OPTIONS": answer, "GET": ""} {
			x := newExchange(method, "/")
			if chain.Answer(x); want != "" && !strings.HasPrefix(x.answer, want) || want == "" && !strings.HasPrefix(x.answer, "418") {
				t.Errorf("%s: %s %s: %q", method, server, location, x.answer)
			}
		}
	}
	f("return 418;", "", "418")
	f("", "return 418;", "204")
}

// ingress-nginx writes custom-headers after the snippets, so they win. hide-headers concerns only the headers of
// endpoints, so what a snippet sets stays.
func TestResponseEditsBesideSnippets(t *testing.T) {
	c := Compile(&config.Route{Backend: "b", Script: &config.Script{Location: `more_set_headers "X-Custom: snippet" "X-Hidden: snippet";`},
		Response: &config.HeaderEdits{Remove: []string{"X-Hidden"}, Set: []config.HeaderValue{{Name: "X-Custom", Value: "own"}}}}, nil)
	x := newExchange("GET", "/")
	x.res.Status = 200
	addLines(&x.res.Head, "X-Hidden", "theirs", "X-Custom", "theirs")
	if c.Answer(x) {
		t.Fatal("the snippet answers")
	}
	if c.EditResponse(x, &x.res); !slices.Equal(lines(&x.res.Head), []string{"X-Hidden: snippet", "X-Custom: own"}) {
		t.Errorf("the response has %q", lines(&x.res.Head))
	}
}

// A snippet replaces or removes the Strict-Transport-Security that ingress-nginx's ConfigMap asks for, as in nginx.
func TestHSTSBesideSnippets(t *testing.T) {
	for snippet, want := range map[string][]string{
		`more_set_headers "X-A: b";`:                                        {"Strict-Transport-Security: max-age=60", "X-A: b"},
		`more_set_headers "Strict-Transport-Security: max-age=5; preload";`: {"Strict-Transport-Security: max-age=5; preload"},
		`more_clear_headers Strict-Transport-Security;`:                     {},
	} {
		c := Compile(&config.Route{Backend: "b", Script: &config.Script{Location: snippet}, HSTS: &config.HSTS{MaxAge: time.Minute}}, nil)
		x := newExchange("GET", "/")
		x.terminated, x.res.Status = true, 200
		addLines(&x.res.Head, "Strict-Transport-Security", "max-age=1")
		if c.Answer(x) {
			t.Fatal("the snippet answers")
		}
		if c.EditResponse(x, &x.res); !slices.Equal(lines(&x.res.Head), want) {
			t.Errorf("with %s the response has %q", snippet, lines(&x.res.Head))
		}
	}
}
