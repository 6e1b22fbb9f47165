package node

import (
	"os"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
)

// A node ends with and without a configuration in effect, also while a request runs.
func TestNodeEnds(t *testing.T) {
	if err := New(config.Log{Level: "fatal"}, Build{}).End(); err != nil {
		t.Errorf("without a configuration: %v", err)
	}
	app := newApp(t, "app")
	r := &running{t: t, words: []string{"@web", unusedAddress(t)}}
	cfg, err := file.Parse("test", []byte("listeners: {web: {address: '"+r.address("web")+"', protocol: http}}\nroutes: [{listeners: [web], backend: app}]\n"+
		"backends: {app: {endpoints: ['"+app.address+"']}}\nadmin: {address: off}\nlog: {level: error}\n"), os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	n := New(cfg.Log, Build{})
	if err := n.Apply(cfg); err != nil {
		t.Fatal(err)
	}
	r.want("web", 200, "app")
	c := r.dial("web")
	c.Write([]byte("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"))
	<-app.held
	if err := n.End(); err != nil {
		t.Errorf("with a request: %v", err)
	}
	if !r.refused("web") {
		t.Error("the listener is open")
	}
}
