package node

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestBuildIsAMetric(t *testing.T) {
	reg := prometheus.NewRegistry()
	newServerMetrics(reg, Build{Version: "v1.2.3", Revision: "0123456789abcdef"})
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var labels []string
	for _, family := range all {
		if family.GetName() == "weir_build_info" {
			for _, l := range family.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
		}
	}
	if got := strings.Join(labels, " "); !strings.HasPrefix(got, "goversion=go1.") || !strings.HasSuffix(got, " revision=0123456789abcdef version=v1.2.3") {
		t.Errorf("weir_build_info has the labels %s", got)
	}
}
