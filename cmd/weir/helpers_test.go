package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/e2e/freeport"
)

// patience is the timeout of each wait in a test.
const patience = 10 * time.Second

// running is a node with a configuration in effect, for the tests of commands that ask it.
type running struct {
	t     *testing.T
	node  *node.Node
	words []string // the addresses that replace @words in configurations
}

// newRunning applies a configuration. In it, @NAME stands for a free address.
func newRunning(t *testing.T, text string, names ...string) *running {
	t.Helper()
	r := &running{t: t, node: node.New(config.Log{Level: "fatal"}, node.Build{Version: "v1"})}
	t.Cleanup(func() {
		if err := r.node.End(); err != nil {
			t.Error(err)
		}
	})
	for _, name := range names {
		address, err := freeport.Weir.Take("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		r.words = append(r.words, "@"+name, address)
	}
	r.load(text)
	return r
}

// address returns the address that replaced @name in the configuration.
func (r *running) address(name string) string {
	return strings.NewReplacer(r.words...).Replace("@" + name)
}

// load applies a configuration.
func (r *running) load(text string) {
	r.t.Helper()
	cfg, err := file.Parse("test", []byte(strings.NewReplacer(r.words...).Replace(text)), os.LookupEnv)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.Log.Level = "fatal" // the output of the test is for failures
	if err := r.node.Apply(cfg); err != nil {
		r.t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s: %v", what, err)
		}
		time.Sleep(time.Millisecond)
	}
}
