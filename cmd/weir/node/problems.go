package node

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weirproxy/weir/cmd/weir/node/status"
)

// lasting has the problems of the whole weir that last until something changes, such as a
// configuration that could not be loaded. An event of the log says when they began, but on the
// status page later events hide it.
type lasting struct {
	mu    sync.Mutex
	known map[any]status.Problem // the key is the object with the problem, such as an access log
}

// begins adds the problem of an object. If the object has one already, only its text is replaced.
func (l *lasting) begins(object any, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = make(map[any]status.Problem)
	}
	p := status.Problem{Since: time.Now().UTC(), Text: text}
	if before, ok := l.known[object]; ok {
		p.Since = before.Since
	}
	l.known[object] = p
}

// ends removes the problem of an object, if it has one.
func (l *lasting) ends(object any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, object)
}

// text returns the text of an object's problem; empty: it has none.
func (l *lasting) text(object any) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.known[object].Text
}

// list returns the problems. The oldest comes first.
func (l *lasting) list() []status.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]status.Problem, 0, len(l.known))
	for _, p := range l.known {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b status.Problem) int { return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Text, b.Text)) })
	return all
}

// problemsShown returns the problems that last, and the access log that loses lines.
func (s *server) problemsShown() []status.Problem {
	all := s.lasting.list()
	if a := s.lines.Load(); a != nil {
		if n, since := a.Losing(); n > 0 {
			all = append(all, status.Problem{Since: since.UTC(), Text: fmt.Sprintf("the access log cannot be written, and %d of its lines were dropped (access_log.path: %s)", n, a.of.Path)})
		}
	}
	return all
}

// loadingProblem is the key of the problem that a reload leaves behind.
const loadingProblem = "reload"

// heldProblem is the key of the problem of a file that waits for a signal.
const heldProblem = "held"

// upgradeProblem is the key of the problem of a failed upgrade. A new process begins without it.
const upgradeProblem = "upgrade"

// reloadProblem is what a failed reload leaves behind: the next start of weir fails, too.
func reloadProblem(err error) string {
	all := problems(err)
	text := "the configuration was not loaded, so an older one is in effect: " + cut(all[0].Error())
	if more := len(all) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more errors)", more)
	}
	return text
}
