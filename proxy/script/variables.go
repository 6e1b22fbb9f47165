package script

import (
	"fmt"
	"strings"
)

// Part is literal text, or else a variable of weir as a config.Template names it, without braces. The
// variables of this package are below.
type Part struct{ Text, Variable string }

// Text is a text with variables.
type Text []Part

// Variables that only programs have.
const (
	NormalPath = "normal_path" // decoded, with slashes merged; after a rewrite the new one
	IsArgs     = "is_args"     // a question mark, if the request has a query
	Msec       = "msec"        // the time in seconds since 1970, with three decimals
	HTTPS      = "https"       // on, if the client used TLS; otherwise nothing
	VarPrefix  = "set."        // and the number of a variable of set
	GroupPath  = "group."      // and the number of a group of the last expression that matched
)

// same are the variables of nginx, and of ingress-nginx, that weir has.
var same = map[string]string{
	"host": "host", "http_host": "authority", "best_http_host": "authority",
	"request_uri": "uri", "escaped_request_uri": "uri_encoded", "args": "query", "query_string": "query",
	"scheme": "scheme", "pass_access_scheme": "scheme", "request_method": "method",
	"remote_addr": "client", "remote_user": "user", "req_id": "request_id", "request_id": "request_id",
}

// serverName is the constant that nginx knows before it has chosen a location.
const serverName = "server_name"

// Constants are the variables that ingress-nginx sets in a location, for a path of an Ingress and its Service, and the name of
// the server. port is as the Ingress writes it. server is the host of the rule; if that is no single host, no snippet can use it.
func Constants(namespace, ingress, service, port, path, server string) map[string]string {
	upstream := namespace + "-" + service + "-" + port
	all := map[string]string{"namespace": namespace, "ingress_name": ingress, "service_name": service, "service_port": port, "location_path": path,
		"proxy_upstream_name": upstream, "proxy_host": upstream, "proxy_alternative_upstream_name": ""}
	if server != "" && !strings.HasPrefix(server, "*") {
		all[serverName] = server
	}
	return all
}

// Variable returns weir's name of a variable of nginx.
func Variable(name string) (string, bool) {
	name = strings.ToLower(name)
	if v, ok := same[name]; ok {
		return v, true
	}
	if header, ok := strings.CutPrefix(name, "http_"); ok && header != "" {
		return "header." + strings.ReplaceAll(header, "_", "-"), true
	}
	if cookie, ok := strings.CutPrefix(name, "cookie_"); ok && cookie != "" {
		return "cookie." + cookie, true
	}
	if param, ok := strings.CutPrefix(name, "arg_"); ok && param != "" {
		return "param." + param, true
	}
	return "", false
}

const nameChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

// Split splits a text of nginx into its literal parts and its variables. variable returns weir's
// name of a variable of nginx, or literal text. The error names what weir does not know.
func Split(text string, variable func(name string) (Part, bool)) (all Text, err error) {
	add := func(p Part) {
		if p.Variable == "" && len(all) > 0 && all[len(all)-1].Variable == "" {
			all[len(all)-1].Text += p.Text
		} else if p != (Part{}) {
			all = append(all, p)
		}
	}
	for {
		before, rest, found := strings.Cut(text, "$")
		add(Part{Text: before})
		if !found {
			return all, nil
		}
		name := rest[:len(rest)-len(strings.TrimLeft(rest, nameChars))]
		if name != "" && '1' <= name[0] && name[0] <= '9' {
			name = name[:1] // a group has one digit
		}
		text = rest[len(name):]
		if inBraces, after, closed := strings.Cut(strings.TrimPrefix(rest, "{"), "}"); strings.HasPrefix(rest, "{") && closed {
			name, text = inBraces, after
		}
		if name == "" || strings.Trim(name, nameChars) != "" {
			return nil, fmt.Errorf("a dollar sign without the name of a variable")
		}
		p, ok := variable(strings.ToLower(name))
		if !ok {
			return nil, fmt.Errorf("the variable $%s", name)
		}
		add(p)
	}
}
