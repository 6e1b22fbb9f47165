package soak

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// state is the use of resources of a node at one moment.
type state struct {
	goroutines, descriptors int // descriptors without those of pipes
	pipes                   int // descriptors of pipes; weir keeps some for later tunnels
	heap                    int // bytes in use after a garbage collection
	resident                int // KiB, only for the log: the runtime returns memory late
	held                    map[string]float64
	endpoints               int // number of series that belong to endpoints
}

// held are the gauges that must be 0 when there are no clients.
var held = []string{"weir_connections_open", parkedMetric, "weir_tunnels_open", "weir_backend_requests_in_flight", "weir_drain_connections_remaining"}

func (s state) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors and %d of pipes, %.2f MiB of heap, %.1f MiB resident, %d series of endpoints, %v",
		s.goroutines, s.descriptors, s.pipes, float64(s.heap)/(1<<20), float64(s.resident)/(1<<10), s.endpoints, s.held)
}

var goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)

// look returns the state of a node after a garbage collection. It always includes the connection of look
// itself.
func look(n *node) (s state, err error) {
	if _, err := n.profile("/debug/pprof/heap?gc=1"); err != nil {
		return s, err
	}
	text, err := n.profile("/debug/pprof/goroutine?debug=1")
	if err != nil {
		return s, err
	}
	if m := goroutineTotal.FindStringSubmatch(text); m != nil {
		s.goroutines, _ = strconv.Atoi(m[1])
	}
	for _, target := range n.descriptors() {
		if strings.HasPrefix(target, "pipe:") {
			s.pipes++
		} else {
			s.descriptors++
		}
	}
	metrics, err := n.metrics()
	if err != nil {
		return s, err
	}
	s.heap = int(metrics["go_memstats_heap_alloc_bytes"])
	s.resident = int(metrics["process_resident_memory_bytes"]) >> 10
	s.held = map[string]float64{}
	for _, name := range held {
		if v := sum(metrics, name); v != 0 {
			s.held[name] = v
		}
	}
	for series := range metrics {
		if strings.HasPrefix(series, "weir_backend_endpoint_up{") {
			s.endpoints++
		}
	}
	return s, nil
}

// descriptors returns the targets of all descriptors of the process.
func (n *node) descriptors() (targets []string) {
	folder := fmt.Sprintf("/proc/%d/fd", n.pid())
	files, _ := os.ReadDir(folder)
	for _, f := range files {
		if target, err := os.Readlink(filepath.Join(folder, f.Name())); err == nil {
			targets = append(targets, target)
		}
	}
	return targets
}

// sparePipes is the number of descriptors of the 16 pipes that weir may keep for tunnels, and of one more
// pipe.
const sparePipes = 2*16 + 2

// slack is the number of goroutines or descriptors that an idle weir may have more than a new one, for
// example for a health check.
const slack = 3

// rested waits until the use of resources is back at its initial level, and fails the test if that does not
// happen.
func (h *house) rested(fresh state, heap int) (now state) {
	h.t.Helper()
	err := eventually("all is back where it began", func() (err error) {
		if now, err = look(h.front); err != nil {
			return err
		}
		var wrong []error
		if now.goroutines > fresh.goroutines+slack {
			wrong = append(wrong, fmt.Errorf("%d goroutines instead of %d", now.goroutines, fresh.goroutines))
		}
		if now.descriptors > fresh.descriptors+slack {
			wrong = append(wrong, fmt.Errorf("%d descriptors instead of %d", now.descriptors, fresh.descriptors))
		}
		if now.pipes > sparePipes {
			wrong = append(wrong, fmt.Errorf("%d descriptors of pipes", now.pipes))
		}
		if now.heap > heap {
			wrong = append(wrong, fmt.Errorf("%d bytes live on the heap, more than %d", now.heap, heap))
		}
		if len(now.held) > 0 {
			wrong = append(wrong, fmt.Errorf("not all are gone: %v", now.held))
		}
		if now.endpoints != fresh.endpoints {
			wrong = append(wrong, fmt.Errorf("%d series of endpoints instead of %d", now.endpoints, fresh.endpoints))
		}
		if len(wrong) > 0 {
			time.Sleep(200 * time.Millisecond) // each look causes a garbage collection
		}
		return errors.Join(wrong...)
	})
	h.t.Logf("at first: %v", fresh)
	h.t.Logf("now:      %v", now)
	if err != nil {
		h.t.Error(err)
		profile, _ := h.front.profile("/debug/pprof/goroutine?debug=1")
		h.t.Logf("goroutines:\n%s", profile[:min(len(profile), 8<<10)])
		targets := h.front.descriptors()
		slices.Sort(targets)
		h.t.Logf("descriptors: %q", targets)
	}
	return now
}
