package annotation

import (
	"maps"
	"strings"
	"testing"
)

func TestForward(t *testing.T) {
	f := checkSetting(t, func(s Settings) Forward { return s.Forward })
	f("upstream-vhost: app.example.org", Forward{Host: "app.example.org"}, Exact)
	f("upstream-vhost: app:8080", Forward{Host: "app:8080"}, Exact)
	f("upstream-vhost: $service_name.${namespace}.svc.cluster.local:$service_port", Forward{Host: "$service_name.$namespace.svc.cluster.local:$service_port"}, Exact)
	f("upstream-vhost: $host", Forward{}, Exact)
	f("upstream-vhost: ", Forward{}, Exact)
	f("upstream-vhost: x.$host", Forward{}, No)
	f("upstream-vhost: $service_names", Forward{}, No)
	f("upstream-vhost: a/b", Forward{}, No)
	f("upstream-vhost: a b", Forward{}, No)
	f("x-forwarded-prefix: /app", Forward{Prefix: "/app"}, Exact)
	f("x-forwarded-prefix: ", Forward{}, Exact)
	f("x-forwarded-prefix: /$1", Forward{}, No)
	f("x-forwarded-prefix: /a b", Forward{}, No)
}

func TestMirrors(t *testing.T) {
	f := checkSetting(t, func(s Settings) Mirror { return s.Mirror })
	f("mirror-target: http://mirror/copy", Mirror{URL: "http://mirror", Path: "/copy", KeepQuery: true}, Near)
	f("mirror-target: https://test.env.com/$request_uri", Mirror{URL: "https://test.env.com", Path: "/{uri}"}, Near)
	f("mirror-target: https://test.env.com:8443$uri?$args", Mirror{URL: "https://test.env.com:8443", Path: "{path}?{query}"}, Near)
	f("mirror-target: http://mirror", Mirror{URL: "http://mirror"}, Near)
	f("mirror-target: http://mirror/a?b", Mirror{URL: "http://mirror", Path: "/a?b"}, Near)
	f("mirror-target: ", Mirror{}, Exact)
	f("mirror-target: $host/x", Mirror{}, No)
	f("mirror-target: http://$host/x", Mirror{}, No)
	f("mirror-target: http://a@b/x", Mirror{}, No)
	f("mirror-target: http://mirror/$http_x", Mirror{}, No)
	f("mirror-target: http://mirror/{uri}", Mirror{}, No)
	f("mirror-target: http://mirror/"+strings.Repeat("$uri", 33), Mirror{}, No)
	f("mirror-target: ftp://mirror/", Mirror{}, No)
	f("mirror-host: a.example", Mirror{Host: "a.example"}, Exact)
	f("mirror-host: $host", Mirror{Host: "$host"}, Exact)
	f("mirror-host: $x", Mirror{}, No)
	f("mirror-host: a/b", Mirror{}, No)
	f("mirror-request-body: off", Mirror{NoBody: true}, Exact)
	f("mirror-request-body: on", Mirror{}, Exact)
	f("mirror-request-body: false", Mirror{}, No)
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"backend-protocol":    {{"`HTTP`, `AUTO_HTTP`, `GRPC`, `GRPCS`", "GRPC", false}, {"`HTTPS`", "HTTPS", false}, {"`FCGI`", "FCGI", false}},
		"upstream-vhost":      {{"a host, also with `$service_name`, `$service_port`, `$namespace`, `$ingress_name`", "a.example", false}, {"with another variable", "$http_x", false}, {"other values", "a/b", false}},
		"x-forwarded-prefix":  {{"a path", "/app", false}, {"other values", "/$1", false}},
		"mirror-target":       {{"URLs", "http://mirror$request_uri", false}, {"other values", "http://$host", false}},
		"mirror-host":         {{"hosts", "a.example", false}, {"with another variable than `$host`", "$x", false}, {"other values", "a/b", false}},
		"mirror-request-body": {{"`on`, `off`", "on", false}, {"other values", "x", false}},
	})
}
