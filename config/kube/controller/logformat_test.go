package controller

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

func TestLogTemplate(t *testing.T) {
	for format, want := range map[string]string{
		// ingress-nginx's default
		`$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer" "$http_user_agent" $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $req_id`: `{client_address} - {user} [{time_local}] "{request_line}" {status} {body_bytes_out} "{referer}" "{user_agent}" {bytes_in} {duration_seconds} [{backend}] [] {endpoint} {body_bytes_out} {duration_seconds} {endpoint_status} {request_id} missing `,
		"${remote_addr}x $http_x_tenant $sent_http_x_powered_by $upstream_http_server": "{client_address}x {request_header:x-tenant} {response_header:x-powered-by} {response_header:server} missing ",
		"$remote_addr {braces} $status":                      "{client_address} {{braces} {status} missing ",
		"$remote_addr $geoip_city $ingress_name $geoip_city": "{client_address} - - - missing $geoip_city,$ingress_name",
		"$status $http_cookie $http_authorization $http_":    "{status} - - - missing $http_cookie,$http_authorization,$http_",
		"$remote_addr\n  $status":                            "{client_address} {status} missing ",
		`it\'s $status`:                                      "it's {status} missing ",
		"always the same":                                    " missing ",
		"$geoip_city":                                        " missing ",
		"$status \x01$status":                                "{status} {status} missing ",
		"$status " + strings.Repeat("x", 5000):               " missing ",
		"${a-b} $status":                                     " missing ",
		"costs 5$ $status":                                   "costs 5$ {status} missing ",
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
	for format, want := range map[string]bool{` {"a": "$status"}`: true, "$status {": false} {
		if isJSON(format, false) != want || !isJSON(format, true) {
			t.Errorf("%q: it is JSON: %v", format, !want)
		}
	}
}

func TestLogFormats(t *testing.T) {
	for format, want := range map[string]string{
		`{"status": "$status"}`: "access_log: {format: json} # log-format-upstream",
		"no variable":           "access_log: {format: ingress-nginx}",
		`"$request" $status`:    `access_log: {format: "\"{request_line}\" {status}"} # log-format-upstream`,
		"$geoip_city $status":   `access_log: {format: "- {status}"} # log-format-upstream`,
	} {
		in := Installation{Data: map[string]string{"log-format-upstream": format}}
		text, changes := in.File()
		told := strings.Contains(strings.Join(changes, "\n"), "log-format-upstream")
		if !strings.Contains(text, "\n"+want+"\n") || told == strings.Contains(format, "$request") {
			t.Errorf("%q: %v\n%s", format, changes, text)
		}
	}
}

// Whatever somebody has written into the ConfigMap, weir accepts the template.
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
