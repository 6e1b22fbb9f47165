package config_test

import (
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
)

// The most specific listed host decides which namespaces may have a host.
func TestListedHosts(t *testing.T) {
	k := config.Kubernetes{Hosts: []config.ListedHosts{
		{[]string{"a"}, []string{"*.a.example", "shop.example", "*.l.example"}}, {[]string{"b"}, []string{"x.a.example", "*.deep.a.example", "shop.example", "z.l.example"}}}}
	for _, c := range []struct{ host, shared, listed string }{ // the namespaces of a, b and c that get it
		{"y.a.example", "a", "a"},
		{"y.z.a.example", "a", "a"},
		{"*.a.example", "a", "a"},
		{"**.a.example", "a", "a"},
		{"x.a.example", "b", "b"},
		{"z.l.example", "b", "b"},
		{"y.deep.a.example", "b", "b"},
		{"shop.example", "ab", "ab"},
		{"a.example", "abc", ""},
		{"other.example", "abc", ""},
		{"*.example", "ab", ""},
		{"**.example", "", ""},
		{"**.other", "abc", ""},
		{"", "abc", ""},
	} {
		for ownership, want := range map[config.HostOwnership]string{config.SharedHosts: c.shared, config.OwnedByList: c.listed} {
			k.HostOwnership = ownership
			got := ""
			for namespace := range strings.SplitSeq("a b c", " ") {
				if k.RefusesHost(namespace, c.host) == "" {
					got += namespace
				}
			}
			if got != want {
				t.Errorf("%s, %q: %q get it, not %q", ownership, c.host, got, want)
			}
		}
	}
}
