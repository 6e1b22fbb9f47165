package memory

import "github.com/prometheus/client_golang/prometheus"

// Collect registers metrics of p.
func Collect(reg prometheus.Registerer, p *Process) { reg.MustRegister(collector{p}) }

var (
	usedDesc = prometheus.NewDesc("weir_memory_account_bytes",
		"Memory held for client connections: header lists, bodies, output and active requests.", nil, nil)
	limitDesc = prometheus.NewDesc("weir_memory_account_limit_bytes",
		"Limit of the memory account (limits.memory); 0: no limit.", nil, nil)
	refusedDesc = prometheus.NewDesc("weir_memory_refused_total",
		"Requests, header lists and bodies refused because of the memory account, by whose share was reached: connection, network or process.", []string{"share"}, nil)
	endedDesc = prometheus.NewDesc("weir_memory_connections_ended_total",
		"Connections closed because they held the most memory while the memory account was full.", nil, nil)
)

type collector struct{ process *Process }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{usedDesc, limitDesc, refusedDesc, endedDesc} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	p := c.process
	ch <- prometheus.MustNewConstMetric(usedDesc, prometheus.GaugeValue, float64(p.Used()))
	ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(p.Limit()))
	for s := range numShares {
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(p.Refused(s)), s.String())
	}
	ch <- prometheus.MustNewConstMetric(endedDesc, prometheus.CounterValue, float64(p.Ended()))
}
