package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const idleEndConfig = `
listeners:
  web: {address: '@web', protocol: http}
routes:
  - {listeners: [web], hosts: [nginx], backend: nginx}
  - {listeners: [web], hosts: [secure], backend: secure}
  - {listeners: [web], hosts: [node], backend: node}
backends:
  nginx: {endpoints: ['@nginx']}
  secure: {protocol: https, endpoints: ['@secure'], tls: {ca: '@@dir/app.crt', server_name: app.internal}}
  node: {endpoints: ['@node']}
`

// A POST request is lost if the endpoint closes the idle connection at that moment. For an
// endpoint that announces when it closes idle connections, as Node.js does, weir closes
// them first. nginx announces nothing, so the log names the setting.
func TestEndpointClosesIdleConnections(t *testing.T) {
	long(t)
	t.Parallel()
	need(t, "nginx")
	node := need(t, "node")
	w := newWeir(t)
	app := writeCertificate(t, w.dir, "app", false, "app.internal")
	runProxy(t, "nginx", w.dir, `server {
        listen `+w.at("nginx")+`;
        listen `+w.at("secure")+` ssl;
        ssl_certificate `+app.cert+`;
        ssl_certificate_key `+app.key+`;
        keepalive_timeout 3s;
        location / { return 200 "nginx"; }
    }
`).listening(w.at("nginx"), w.at("secure"))
	script := filepath.Join(w.dir, "announce.js")
	if err := os.WriteFile(script, []byte(announceJS), 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(w.at("node"), ":")
	server := runPeer(t, node, script, port)
	server.listening(w.at("node"))
	w.start(idleEndConfig)

	for round := range 4 {
		for _, name := range []string{"nginx", "secure", "node"} {
			if got := string(curl(t, "http://"+w.at("web")+"/", "-H", "Host: "+name, "--data", "x")); got == "" {
				t.Errorf("%s: no response", name)
			}
		}
		eventually(t, "the idle connections are closed", func() error {
			_, status, err := w.get("admin", "/status")
			if n := strings.Count(status, `"idle": 0`) + strings.Count(status, `"idle":0`); err == nil && n != 3 {
				err = fmt.Errorf("%d of 3 backends have none in round %d", n, round)
			}
			return err
		})
	}
	for _, name := range []string{"nginx", "secure"} {
		eventually(t, "the log names the key", func() error {
			for line := range strings.Lines(w.log.String()) {
				if strings.Contains(line, "closes idle connections before weir") && strings.Contains(line, "set backends."+name+".timeouts.keep_alive to ") {
					return nil
				}
			}
			return fmt.Errorf("no line for %s", name)
		})
	}
	if text := w.log.String(); strings.Contains(text, "set backends.node.") {
		t.Errorf("Node.js announced the time, but the log has advice")
	}
	if said := server.log.String(); !strings.Contains(said, "weir closed") || strings.Contains(said, "node closed") {
		t.Errorf("who closed idle connections:\n%s", said)
	}
}

// announceJS says who closes each idle connection. Node.js announces keepAliveTimeout in
// the Keep-Alive header.
const announceJS = `
var server = require('http').createServer(function (req, res) {
  req.resume();
  req.on('end', function () { res.end('node'); });
});
server.keepAliveTimeout = 3000;
server.on('connection', function (socket) {
  var ended = false;
  socket.on('end', function () { ended = true; });
  socket.on('close', function () { if (socket.bytesRead > 0) console.log(ended ? 'weir closed' : 'node closed'); });
});
server.listen(Number(process.argv[2]), '127.0.0.1');
`
