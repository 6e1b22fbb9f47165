package controller

import (
	"regexp"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config"
)

// logVariables are the fields of weir's access log by the variables of nginx that log-format-upstream may have. An
// empty one is always empty in weir. HTTP headers are not among them: see logField.
var logVariables = map[string]string{
	"remote_addr": "client_address", "proxy_protocol_addr": "client_address", "the_real_ip": "client_address", "proxy_add_x_forwarded_for": "client_address", "full_x_forwarded_for": "client_address", "remote_port": "client_port",
	"remote_user": "user", "time_local": "time_local", "time_iso8601": "time_iso8601", "msec": "time_unix",
	"request": "request_line", "request_method": "method", "request_uri": "target", "uri": "path", "args": "query", "query_string": "query",
	"scheme": "scheme", "pass_access_scheme": "scheme", "server_protocol": "protocol",
	"host": "host_name", "http_host": "host", "best_http_host": "host", "http_referer": "referer", "http_user_agent": "user_agent",
	"request_id": "request_id", "req_id": "request_id",
	"status": "status", "body_bytes_sent": "body_bytes_out", "bytes_sent": "bytes_out", "request_length": "bytes_in", "request_time": "request_time",
	"proxy_upstream_name": "backend", "proxy_alternative_upstream_name": "",
	"upstream_addr": "endpoint", "upstream_status": "endpoint_status", "upstream_response_length": "endpoint_body_bytes", "upstream_bytes_received": "endpoint_body_bytes",
	"upstream_response_time": "endpoint_time", "upstream_header_time": "response_head_seconds", "upstream_connect_time": "connect_seconds",
	"ssl_protocol": "tls_protocol", "ssl_cipher": "tls_cipher_suite", "ssl_server_name": "sni", "ssl_client_s_dn": "tls_client_subject",
}

var logVariable = regexp.MustCompile(`\$(\w+|\{\w+\})`)

// unescape replaces what nginx replaces in a string of its configuration.
var unescape = strings.NewReplacer(`\\`, `\`, `\'`, "'", `\"`, `"`, `\t`, "\t", `\n`, "\n", `\r`, "\n")

// lineBreaks are the ends of lines in a format, which a line of weir cannot have.
var lineBreaks = regexp.MustCompile(`\s*\n\s*`)

// literal is text of a format as a template has it.
func literal(text string) string {
	return OneLine(strings.NewReplacer("{", "{{", "\t", "{tab}").Replace(text))
}

// logTemplate converts log-format-upstream into a template of weir's access log. missing are its variables for which
// weir has no field; the template has a dash in their place. An empty template: weir cannot write such lines.
func logTemplate(format string) (template string, missing []string) {
	format = lineBreaks.ReplaceAllString(strings.TrimSpace(unescape.Replace(format)), " ")
	at := 0
	for _, m := range logVariable.FindAllStringIndex(format, -1) {
		name := strings.Trim(format[m[0]:m[1]], "${}")
		template += literal(format[at:m[0]])
		at = m[1]
		switch field, known := logField(name); {
		case !known:
			template += "-"
			if !slices.Contains(missing, "$"+name) {
				missing = append(missing, "$"+name)
			}
		case field != "":
			template += "{" + field + "}"
		}
	}
	template += literal(format[at:])
	if !config.ValidLogTemplate(template) || strings.Contains(template, "${") { // which stands for a variable of the environment
		return "", nil
	}
	return template, missing
}

// logField returns the field for a variable of nginx.
func logField(variable string) (field string, known bool) {
	if field, known = logVariables[variable]; known {
		return field, true
	}
	for begin, kind := range map[string]string{"http_": config.RequestHeaderField, "sent_http_": config.ResponseHeaderField, "upstream_http_": config.ResponseHeaderField} {
		if name, ok := strings.CutPrefix(variable, begin); ok && name != "" {
			field = kind + strings.ReplaceAll(name, "_", "-")
			return field, config.ValidLogTemplate("{" + field + "}") // not for the HTTP headers that have secrets
		}
	}
	return "", false
}
