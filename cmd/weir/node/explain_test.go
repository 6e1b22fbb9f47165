package node

import (
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/proxy/message"
)

// asking returns the configuration of the tests.
func asking(t testing.TB) *config.Config {
	t.Helper()
	cfg, err := file.Parse("test", []byte(`
listeners:
  web: {address: ":80", protocol: http}
  secure: {address: ":443", protocol: tls}
  raw: {address: ":22", protocol: tcp}
certificates: [{self_signed: {hosts: [a.test]}}]
routes:
  - {name: a, listeners: [web, secure], hosts: [a.test], paths: [/a], match: {methods: [GET], headers: {X: "~b*"}, query: {q: "*"}, cookies: {c: d}, clients: [192.0.2.0/24]}, max_body: 1KiB, backend: app}
  - {name: b, listeners: [web], hosts: ["*.a.test", a.test], paths: ["~/b/[0-9]+", =/c], backend: app}
  - {name: raw, listeners: [raw], backend: lines}
backends:
  app: {endpoints: ["127.0.0.1:1"]}
  lines: {protocol: tcp, endpoints: ["127.0.0.1:2"]}
`), func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// Whatever is asked, the answer is a route of the configuration, or a refusal, or an error. The
// request has no more headers than were asked for.
func FuzzExplain(f *testing.F) {
	for _, url := range []string{"http://a.test/a?q=1", "https://a.test/b/1", "tcp://:22", "ssh://a:80", "http://[::1]:80/", "HTTP://a.test?#/", "http://a@b:80/\r\nX: y", "https:///", "http://a.test:/ HTTP/1.1", "http://a.test/%00"} {
		f.Add(url, "GET", "192.0.2.1", "X: b")
	}
	f.Add("http://a.test/a", "G\nT", "::ffff:192.0.2.1", "Cookie:c=d")
	f.Add("http://a.test/a", "", "", "X: b\r\nHost: c")
	f.Add("http://a.test/a", "POST", "fe80::1%eth0", " X: b")
	f.Add("http://a.test/a", "POST", "a", "Transfer-Encoding: chunked")
	cfg := asking(f)
	s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
	f.Cleanup(s.close)
	table, store, err := s.tableOffline(cfg)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, url, method, client, header string) {
		a := Asked{URL: url, Method: method, Client: client, Headers: []string{header}}
		u, err := parseAsked(a)
		if err != nil {
			return
		}
		if u.head != "" {
			var req message.Request
			if refusal, err := u.read(&req, cfg.Limits, new(config.Listener)); err == nil && refusal == nil && len(req.Fields) > 2 {
				t.Errorf("%q has %d headers", u.head, len(req.Fields))
			}
			if strings.Count(u.head, "\r\n") > 4 {
				t.Errorf("%q has more lines than were asked for", u.head)
			}
		}
		x, err := explain(cfg, table, store, a)
		if err == nil && (x.Route == "" && x.Refused == nil && x.Protocol != config.ProtocolTLS || x.Route != "" && !strings.Contains("a b raw", x.Route)) {
			t.Errorf("%+v", x)
		}
	})
}

func TestExplainNeedsItsFiles(t *testing.T) {
	cfg := asking(t)
	cfg.Certificates[0] = config.Certificate{CertFile: "none.crt", KeyFile: "none.key"}
	if _, err := Explain(cfg, Asked{URL: "https://a.test/"}); err == nil || !strings.Contains(err.Error(), "none.") {
		t.Error(err)
	}
}

func TestExplainACME(t *testing.T) {
	cfg := asking(t)
	cfg.Certificates = append([]config.Certificate{{Position: config.Position{File: "f", Line: 1, Column: 2}, ACME: &config.ACME{Hosts: []string{"*.b.test"}}}}, cfg.Certificates...)
	s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
	t.Cleanup(s.close)
	store, err := s.storeOffline(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f := func(name, want string) {
		t.Helper()
		if got := certificateFor(cfg, store, name); !strings.HasPrefix(got, want) {
			t.Errorf("%s has the certificate %s, want %s", name, got, want)
		}
	}
	f("x.b.test", "acme (f:1:2)")
	f("a.test", "self_signed (test:6:")
	f("none.test", "self_signed (test:6:")
	f("", "self_signed (test:6:")
	cfg.Certificates[0].ACME.Hosts = nil
	f("none.test", "acme (f:1:2)")
	cfg.Certificates = cfg.Certificates[:1]
	f("", "none")
}
