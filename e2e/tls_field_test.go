package e2e

import (
	"fmt"
	"testing"
)

// TestApplicationsAnswerTheirOwnChallenges: weir redirects the challenges of other ACME clients, such as an
// application behind it. It answers 404 only for hosts for which it orders certificates itself.
func TestApplicationsAnswerTheirOwnChallenges(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newWebBackend(t, "app").address
	const config = `
listeners: {web: {address: '@web', protocol: http}, secure: {address: '@secure', protocol: tls}}
certificates:
  - {self_signed: {hosts: [app.example.org]}}
%sroutes:
  - {listeners: [web], redirect: https}
  - {listeners: [secure], backend: app}
backends: {app: {endpoints: ['@app']}}
`
	const path = "/.well-known/acme-challenge/token-of-the-application"
	w.start(fmt.Sprintf(config, ""))
	f := func(host string, want int) {
		t.Helper()
		if got, _ := w.sendTo("GET", "web", path, host); got != want {
			t.Errorf("%s answers %d, want %d", host, got, want)
		}
	}
	f("app.example.org", 308)
	if s := curlSeen(t, "--location", "--connect-to", "app.example.org:80:"+w.at("web"), "--connect-to", "app.example.org:443:"+w.at("secure"), "http://app.example.org"+path); s.URI != path {
		t.Errorf("the application gets %q", s.URI)
	}
	w.reload(fmt.Sprintf(config, "  - {acme: {hosts: [ours.example.org], directory: 'https://127.0.0.1:1/', storage: '@@dir/acme', challenges: [http-01]}}\n"))
	f("app.example.org", 308)
	f("ours.example.org", 404)
}
