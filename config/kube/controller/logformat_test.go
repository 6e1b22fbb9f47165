package controller

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestLogTemplate(t *testing.T) {
	for format, want := range map[string]string{
		// ingress-nginx's default
		`$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id`: `{client_address} - {user} [{time_local}] "{request_line}" {status} {body_bytes_out} "{referer}" "{user_agent}" {bytes_in} {request_time} [{backend}] [] {endpoint} {endpoint_body_bytes} {endpoint_time} {endpoint_status} {request_id} missing `,
		"${remote_addr}x $http_x_tenant $sent_http_x_powered_by $upstream_http_server": "{client_address}x {request_header:x-tenant} {response_header:x-powered-by} {response_header:server} missing ",
		"$remote_addr {braces} $status":                                       "{client_address} {{braces} {status} missing ",
		"$remote_addr $geoip_city $ingress_name $geoip_city":                  "{client_address} - - - missing $geoip_city,$ingress_name",
		"$status $http_cookie $http_authorization $http_":                     "{status} - - - missing $http_cookie,$http_authorization,$http_",
		"$remote_addr\n  $status":                                             "{client_address} {status} missing ",
		"$status\t$time_iso8601  x\\ty\\\"":                                   "{status}{tab}{time_iso8601}  x{tab}y\" missing ",
		"{\r\n\t\"status\": $status,\n  \"of\": {\"a\": \"$remote_addr\"}}\n": "{{ \"status\": {status}, \"of\": {{\"a\": \"{client_address}\"}} missing ",
		`it\'s $status`:                        "it's {status} missing ",
		"always the same":                      " missing ",
		"$geoip_city":                          " missing ",
		"$status \x01$status":                  "{status}  {status} missing ",
		"$status " + strings.Repeat("x", 5000): " missing ",
		"${a-b} $status":                       " missing ",
		"costs 5$ $status":                     "costs 5$ {status} missing ",
	} {
		template, missing := logTemplate(format)
		if got := template + " missing " + strings.Join(missing, ","); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", format, got, want)
		}
	}
	for variable, field := range logVariables {
		if field != "" && !config.ValidLogTemplate("{"+field+"}") {
			t.Errorf("$%s: weir has no field %s", variable, field)
		}
	}
}

func TestLogFormats(t *testing.T) {
	const only = ", filter: {kinds: [http, upgrade]}} # log-format-upstream"
	for _, x := range []struct{ format, escape, want, change string }{
		{`{"status": "$status"}`, "", `access_log: {format: "{{\"status\": \"{status}\"}"` + only, ""},
		{`{"status": "$status"}`, "json", `access_log: {format: "{{\"status\": \"{status}\"}"` + only, ""},
		{`{"status": "$status"}`, "none", `access_log: {format: "{{\"status\": \"{status}\"}"` + only, "whatever log-format-escape-none says"},
		{"$status", "json", `access_log: {format: "{status}"` + only, "whatever log-format-escape-json says"},
		{"", "json", "access_log: {format: ingress-nginx}", ""},
		{"no variable", "", "access_log: {format: ingress-nginx}", "weir cannot write lines in the format of log-format-upstream"},
		{`"$request" $status`, "", `access_log: {format: "\"{request_line}\" {status}"` + only, ""},
		{"$geoip_city $status", "", `access_log: {format: "- {status}"` + only, "writes - in their place: $geoip_city"},
	} {
		in := Installation{Data: map[string]string{"log-format-upstream": x.format, "log-format-escape-" + x.escape: "true"}}
		text, changes := in.File()
		all := strings.Join(changes, "\n")
		if !strings.Contains(text, "\n"+x.want+"\n") || !strings.Contains(all, x.change) || x.change == "" && all != "" {
			t.Errorf("%q with escape %s: %v\n%s", x.format, x.escape, changes, text)
		}
	}
}

// The Service of --default-backend-service shows errors only if the controller watches its namespace.
func TestDefaultBackendInFile(t *testing.T) {
	controllersMap := config.ObjectName{Namespace: "web", Name: "controller"}
	for _, x := range []struct {
		flags     map[string]string
		configMap config.ObjectName
		want      string // the key, or the change of a file without it
	}{
		{map[string]string{"default-backend-service": "web/errors"}, controllersMap, "default_backend: web/errors"},
		{map[string]string{"default-backend-service": "web/errors", "watch-namespace": "apps, web"}, controllersMap, "default_backend: web/errors"},
		{map[string]string{"default-backend-service": "web/errors", "watch-namespace": "apps"}, controllersMap, ""},
		{map[string]string{"default-backend-service": "errors"}, controllersMap, ""},
		{map[string]string{"default-backend-service": "web/errors"}, config.ObjectName{}, "create an empty ConfigMap, and write ingress_nginx: {config_map: NAMESPACE/NAME, default_backend: web/errors}"},
		{map[string]string{"default-backend-service": "web/errors", "watch-namespace": "apps"}, config.ObjectName{}, ""},
	} {
		in := Installation{Flags: x.flags, ConfigMap: x.configMap}
		text, changes := in.File()
		all := text + strings.Join(changes, "\n")
		if !strings.Contains(all, x.want) || x.want == "" && strings.Contains(all, "default_backend") {
			t.Errorf("%v: want %q\n%s", x.flags, x.want, all)
		}
	}
}

// weir accepts each template that migrate makes of a text in the ConfigMap.
func FuzzLogTemplate(f *testing.F) {
	for _, s := range []string{"$remote_addr {", "${status", "$http_a}b", "$status \xff", "{$status}", `$status "\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, format string) {
		if template, _ := logTemplate(format); template != "" && !config.ValidLogTemplate(template) {
			t.Errorf("%q: %q", format, template)
		}
	})
}
