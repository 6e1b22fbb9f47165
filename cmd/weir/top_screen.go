package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirproxy/weir/cmd/weir/node/status"
)

// topScreen makes the lines that top shows.
type topScreen struct {
	answers       []topAnswer
	sort          string
	width, height int // 0: unknown
	interactive   bool
}

// draw writes a frame over the previous one.
func (s *topScreen) draw(out io.Writer) error {
	lines := s.lines()
	if s.height > 0 {
		lines = lines[:min(len(lines), s.height)]
	}
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line)
		b.WriteString("\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := out.Write(b.Bytes())
	return err
}

// lines makes all lines, as wide as the screen. No text of an instance can change the terminal:
// characters that cannot be printed become "?".
func (s *topScreen) lines() []string {
	all := s.head()
	problems := s.problems()
	all = append(all, s.instances()...)
	routes := s.routes()
	if s.height > 0 { // problems are more important than the last routes
		room := s.height - len(all) - len(problems)
		routes = routes[:max(min(len(routes), room), min(len(routes), 4))]
	}
	all = append(all, routes...)
	all = append(all, problems...)
	for i, line := range all {
		all[i] = s.cut(line)
	}
	return all
}

func (s *topScreen) cut(line string) string {
	line = strings.Map(printable, line)
	if s.width > 0 && utf8.RuneCountInString(line) > s.width {
		return string([]rune(line)[:s.width])
	}
	return line
}

func (s *topScreen) head() []string {
	healthy, latest := 0, time.Time{}
	for _, a := range s.answers {
		if a.err == nil && a.overview != nil {
			if a.overview.Health.Healthy {
				healthy++
			}
			if a.overview.At.After(latest) {
				latest = a.overview.At
			}
		}
	}
	line := fmt.Sprintf("weir top: %d of %d healthy", healthy, len(s.answers))
	if !latest.IsZero() {
		line += latest.Local().Format(", 15:04:05")
	}
	line += ", routes by " + s.sort
	if s.interactive {
		line += " (q ends, r e p n sort)"
	}
	return []string{line, ""}
}

// columns formats rows with aligned columns. The first column is aligned to the left. On a narrow screen the
// columns that spare names are left out, in its order, and then the texts of the first column are cut.
func (s *topScreen) columns(rows [][]string, spare ...string) (lines []string) {
	widths := widthsOf(rows)
	for ; s.width > 0 && total(widths) > s.width && len(spare) > 0; spare = spare[1:] {
		out := slices.Index(rows[0], spare[0])
		for i := range rows {
			rows[i] = slices.Delete(rows[i], out, out+1)
		}
		widths = widthsOf(rows)
	}
	if over := total(widths) - s.width; s.width > 0 && over > 0 {
		widths[0] = max(widths[0]-over, leastName)
	}
	for _, r := range rows {
		var b strings.Builder
		for i, text := range r {
			space := strings.Repeat(" ", max(widths[i]-utf8.RuneCountInString(text), 0))
			switch {
			case i == 0 && space == "":
				b.WriteString(string([]rune(text)[:widths[0]]))
			case i == 0:
				b.WriteString(text + space)
			case i == len(widths)-1: // the last column is text
				b.WriteString("  " + text)
			default:
				b.WriteString("  " + space + text)
			}
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

// leastName is how much of a name stays on a narrow screen. mostLast is how much of the last column counts:
// it ends at the edge of the screen.
const (
	leastName = 8
	mostLast  = 24
)

func widthsOf(rows [][]string) []int {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, text := range r {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	return widths
}

func total(widths []int) int {
	last := len(widths) - 1
	n := 2*last + min(widths[last], mostLast)
	for _, w := range widths[:last] {
		n += w
	}
	return n
}

// wrapped breaks a line between words, so that it ends at the edge of the screen.
func (s *topScreen) wrapped(line string) (lines []string) {
	const indent = "  "
	for s.width > 2*len(indent) && utf8.RuneCountInString(line) > s.width {
		head := string([]rune(line)[:s.width])
		if space := strings.LastIndexByte(head, ' '); space > len(indent) {
			head = head[:space]
		}
		lines = append(lines, head)
		line = indent + strings.TrimLeft(line[len(head):], " ")
	}
	return append(lines, line)
}

func (s *topScreen) instances() []string {
	rows := [][]string{{"INSTANCE", "REQ/S", "4XX/S", "5XX/S", "P50", "P99", "CONN", "ACTIVE", "PARKED", "MEMORY", "HEALTH"}}
	for i := range s.answers {
		a := &s.answers[i]
		if a.overview == nil || a.err != nil {
			why := "waiting for the first answer"
			if a.err != nil {
				why = "no answer"
			}
			rows = append(rows, []string{a.name(), "-", "-", "-", "-", "-", "-", "-", "-", "-", why})
			continue
		}
		o := a.overview
		n, c := o.Traffic.Now, o.Connections
		state := "healthy"
		if !o.Health.Healthy {
			state = "503: " + strings.Join(o.Health.Reasons, "; ")
		}
		rows = append(rows, []string{a.name(), perSecond(n.Requests), perSecond(n.Refused), perSecond(n.Errors), secondsShown(n.P50), secondsShown(n.P99),
			fmt.Sprint(c.Open), fmt.Sprint(c.States["active"]), fmt.Sprint(c.Parked), bytesShown(c.Resident), state})
	}
	return append(s.columns(rows, "PARKED", "4XX/S", "P50", "MEMORY", "ACTIVE", "CONN"), "")
}

// routes adds up the routes of all instances by name. Percentiles are from the slowest instance.
func (s *topScreen) routes() []string {
	sums, all := make(map[string]*status.Route), 0
	for _, a := range s.answers {
		if a.overview == nil || a.err != nil {
			continue
		}
		all = max(all, a.overview.Routes.Matching)
		for _, r := range a.overview.Routes.Rows {
			sum := sums[r.Name]
			if sum == nil {
				sum = &status.Route{Name: r.Name, Backend: r.Backend}
				sums[r.Name] = sum
			}
			sum.Total, sum.Failed, sum.Tunnels = sum.Total+r.Total, sum.Failed+r.Failed, sum.Tunnels+r.Tunnels
			sum.Now.Seconds = max(sum.Now.Seconds, r.Now.Seconds)
			sum.Now.Requests, sum.Now.Errors = sum.Now.Requests+r.Now.Requests, sum.Now.Errors+r.Now.Errors
			sum.Now.P50, sum.Now.P99 = max(sum.Now.P50, r.Now.P50), max(sum.Now.P99, r.Now.P99)
		}
	}
	var list []status.Route
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		list = append(list, *sums[name])
	}
	list = status.PageOfRoutes(list, status.Query{Sort: s.sort, Page: 1, Rows: max(len(list), 1)}).Rows
	rows := [][]string{{"ROUTE", "REQ/S", "5XX/S", "P50", "P99", "REQUESTS", "ERRORS", "TUNNELS", "BACKEND"}}
	for _, r := range list {
		n := []string{"-", "-", "-", "-"}
		if r.Now.Seconds > 0 {
			n = []string{perSecond(r.Now.Requests), perSecond(r.Now.Errors), secondsShown(r.Now.P50), secondsShown(r.Now.P99)}
		}
		rows = append(rows, append(append([]string{cmp.Or(r.Name, "(no route)")}, n...), fmt.Sprint(r.Total), fmt.Sprint(r.Failed), fmt.Sprint(r.Tunnels), r.Backend))
	}
	lines := s.columns(rows, "P50", "TUNNELS", "REQUESTS", "ERRORS")
	if more := all - len(list); more > 0 {
		lines = append(lines, fmt.Sprintf("... and %d more routes", more))
	}
	return lines
}

// mostProblems limits the problems of one kind that top shows for an instance.
const mostProblems = 5

// shownOf returns the rows with a problem that top shows. They come first.
func shownOf[T any](l status.List[T]) []T {
	return l.Rows[:max(min(len(l.Rows), mostProblems, l.Bad), 0)]
}

func (s *topScreen) problems() []string {
	var lines []string
	for i := range s.answers {
		a := &s.answers[i]
		var texts []string
		switch {
		case a.err != nil:
			texts = []string{a.err.Error()}
		case a.overview != nil:
			texts = problemsOf(a.overview)
		}
		for _, text := range texts {
			lines = append(lines, s.wrapped(strings.Map(printable, a.name()+": "+text))...)
		}
	}
	if len(lines) > 0 {
		lines = append([]string{"", "PROBLEMS"}, lines...)
	}
	return lines
}

// problemsOf lists the problems of an instance.
func problemsOf(o *status.Overview) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, p := range o.Problems[:min(len(o.Problems), mostProblems)] {
		add("%s (for %v)", p.Text, o.At.Sub(p.Since).Round(time.Second))
	}
	for _, b := range shownOf(o.Backends) {
		text := fmt.Sprintf("backend %s: %d of %d endpoints work", b.Name, b.Working, b.Count)
		if len(b.Endpoints) > 0 {
			text += ": " + whyOut(&b.Endpoints[0])
		}
		add("%s", text)
	}
	if more := o.Backends.Bad - mostProblems; more > 0 {
		add("%d more backends with a problem", more)
	}
	for _, c := range shownOf(o.Certificates) {
		names := strings.Join(c.Names, ", ")
		switch {
		case c.NotAfter.IsZero():
			add("no certificate for %s yet: %s%s", names, c.Error, nextAttempt(&c, o.At))
		case c.NotAfter.Before(o.At) && c.Error != "":
			add("the certificate of %s has expired, and cannot be renewed: %s%s", names, c.Error, nextAttempt(&c, o.At))
		case c.NotAfter.Before(o.At):
			add("the certificate of %s has expired", names)
		case c.Error != "":
			add("the certificate of %s cannot be renewed: %s%s", names, c.Error, nextAttempt(&c, o.At))
		default:
			add("the certificate of %s expires in %d days", names, int(c.NotAfter.Sub(o.At).Hours()/24))
		}
	}
	if o.Objects != nil && o.Objects.Trouble != "" {
		add("weir cannot watch the cluster: %s", o.Objects.Trouble)
	}
	if o.Objects == nil {
		return lines
	}
	shown := o.Objects.Faults.Rows[:min(len(o.Objects.Faults.Rows), mostProblems)]
	for _, f := range shown {
		add("%s %s: %s: %s", f.Kind, f.Object, f.Reason, f.Message)
	}
	if more := o.Objects.Faults.All - len(shown); more > 0 {
		add("%d more faults of objects of the cluster; the status page lists them", more)
	}
	return lines
}

// whyOut says why an endpoint gets no requests.
func whyOut(e *status.Endpoint) string {
	switch {
	case e.Error == "" && e.State == "down":
		return e.Address + " has not passed enough health checks yet (health_check.rise)"
	case e.Error == "":
		return e.Address + " is " + e.State
	case strings.Contains(e.Error, e.Address):
		return e.Error
	}
	return e.Address + ": " + e.Error
}

// nextAttempt says when weir will try again to obtain a certificate; empty: no attempt has failed.
func nextAttempt(c *status.Certificate, now time.Time) string {
	if c.Next.IsZero() {
		return ""
	}
	return fmt.Sprintf("; next attempt in %v", max(c.Next.Sub(now), 0).Round(time.Second))
}

func perSecond(n float64) string {
	switch {
	case n == 0:
		return "0"
	case n < 10:
		return fmt.Sprintf("%.1f", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// secondsShown formats a time in seconds.
func secondsShown(s float64) string {
	switch {
	case s == 0:
		return "-"
	case s < 0.001:
		return fmt.Sprintf("%.0fµs", s*1e6)
	case s < 0.01:
		return fmt.Sprintf("%.1fms", s*1e3)
	case s < 1:
		return fmt.Sprintf("%.0fms", s*1e3)
	}
	return fmt.Sprintf("%.1fs", s)
}

// bytesShown formats a number of bytes.
func bytesShown(n uint64) string {
	switch {
	case n == 0:
		return "-"
	case n < 1<<30:
		return fmt.Sprintf("%dM", n>>20)
	}
	return fmt.Sprintf("%.1fG", float64(n)/(1<<30))
}
