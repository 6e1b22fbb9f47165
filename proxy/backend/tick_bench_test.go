package backend

import (
	"fmt"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// manyBackends returns a Set of 10,000 backends with four endpoints each.
func manyBackends(t testing.TB) (*Set, []config.Backend) {
	var all []config.Backend
	for i := range 10_000 {
		b := placed(config.LeastRequests)
		b.Name, b.RampUp = fmt.Sprintf("shop/app-%d:80", i), 10*time.Second
		for j := range 4 {
			b.Endpoints = append(b.Endpoints, config.Endpoint{Address: fmt.Sprintf("10.%d.%d.%d:80", j, i>>8, i&255), Weight: 1, Node: fmt.Sprintf("node-%d", j)})
		}
		all = append(all, b)
	}
	s := NewSet(Options{})
	t.Cleanup(s.Close)
	if _, err := s.Update(listOf(all...), here); err != nil {
		t.Fatal(err)
	}
	return s, all
}

// BenchmarkTick measures the work that 10,000 idle backends cause each second.
func BenchmarkTick(b *testing.B) {
	s, _ := manyBackends(b)
	b.ReportAllocs()
	for b.Loop() {
		s.opts.awake.tick()
	}
}

// BenchmarkUpdateEndpoints measures a change of the endpoints of one backend among 10,000, and
// for comparison an update of all.
func BenchmarkUpdateEndpoints(b *testing.B) {
	s, all := manyBackends(b)
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			endpoints := append([]config.Endpoint{}, all[0].Endpoints...)
			endpoints[i%4].Address = fmt.Sprintf("10.9.%d.%d:80", i>>8&255, i&255)
			if err := s.UpdateEndpoints(all[0].Name, endpoints); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Update(listOf(all...), here); err != nil {
				b.Fatal(err)
			}
		}
	})
}
