package node

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/proxy/backend"
)

// besideObjects is the file with which the objects are served.
const besideObjects = `
listeners:
  web: {address: "127.0.0.1:80", protocol: http}
  websecure: {address: "127.0.0.1:443", protocol: tls}
certificates: [{self_signed: {hosts: [file.example]}}]
routes: [{listeners: [web, websecure], hosts: [file.example], backend: app}]
backends: {app: {endpoints: ["127.0.0.1:1"]}}
health: {address: "127.0.0.1:8086"}
kubernetes: {class: weir, default_certificate: a/tls, require_local: [a/app], tcp: {config_map: a/ports}}
`

// FuzzObjectsTakeEffect checks that the result of any objects can take effect. Otherwise
// one wrong object would block all others.
func FuzzObjectsTakeEffect(f *testing.F) {
	files, err := filepath.Glob("../../../config/kube/testdata/*.txt")
	if err != nil || len(files) == 0 {
		f.Fatal("there are no manifests to begin with", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, one := range strings.Split(string(text), "\n=== ")[1:] {
			_, objects, _ := strings.Cut(one, "\n")
			objects, _, _ = strings.Cut(objects, "\n--- want")
			if _, after, ok := strings.Cut(objects, "--- objects\n"); ok {
				objects = after
			}
			f.Add(objects)
		}
	}
	s := newServer(zap.NewNop(), zap.NewAtomicLevel(), Build{})
	f.Cleanup(s.close)
	s.backends.Close()
	s.backends = backend.NewSet(backend.Options{Lookup: func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("nobody is asked") }})
	file, err := file.Parse("test", []byte(besideObjects), os.LookupEnv)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, manifests string) {
		var m kube.Manifests
		m.Read(strings.NewReader(manifests)) // up to the first invalid document
		if len(m.ConfigMaps) > 0 {
			m.TCP = m.ConfigMaps[0]
		}
		if err := takeEffect(s, file, &m); err != nil {
			t.Errorf("%v of\n%s", err, manifests)
		}
	})
}

// takeEffect does all steps of prepare except binding.
func takeEffect(s *server, file *config.Config, m *kube.Manifests) (err error) {
	routing := (&kube.Converter{File: file}).Convert(&m.Objects)
	endpoints := map[string][]config.Endpoint{}
	for i := range routing.Backends {
		b := routing.Backends[i]
		for _, service := range m.Services {
			if service.Namespace == b.Source.Namespace && service.Name == b.Source.Name {
				endpoints[b.Name] = kube.Endpoints(b, service, m.Slices)
			}
		}
	}
	a, err := s.readFile(file)
	if err != nil {
		return err
	}
	p := a.plan(file)
	p.cfg = routing.Merge(file, endpoints)
	if err := s.planCertificates(p); err != nil {
		return err
	}
	if err := s.planPolicies(p); err != nil {
		return err
	}
	backends, err := s.backends.PlanObjects(p.cfg.AllBackends(), backend.NodeInfo{}, nil)
	if err != nil {
		return err
	}
	if p.filters, err = s.filters.Plan(p.cfg, deciders(backends)); err != nil {
		return err
	}
	p.table, err = proxy.NewTable(p.cfg, proxy.Parts{Backends: backends.Backends(), Shared: p.filters, Policies: p.allPolicies(), Metrics: s.proxy.Metrics})
	if err != nil {
		return err
	}
	s.proxy.Swap(p.table) // otherwise the metrics of every earlier route would be kept
	return backends.Commit()
}
