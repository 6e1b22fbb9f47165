package script

import (
	"fmt"
	"strconv"
	"strings"
)

// Tenants of a cluster write snippets, and a text may repeat what the client sent, or a variable that repeats it
// already. So a few directives could make gigabytes of one request. mostMade limits what a program makes for a
// request, in bytes, if each variable of the request is as large as headBytes, the default of limits.head_size.
const (
	headBytes = 64 << 10
	mostMade  = 4 << 20
)

// small are the variables of a request that are never large, and the most bytes of each.
var small = map[string]int{"host": 300, "authority": 300, "scheme": 5, "client": 50, "request_id": 200, IsArgs: 1, HTTPS: 2}

// sizes are the largest sizes of texts while a program runs, in bytes.
type sizes struct {
	set    []int // of the variables of set
	groups int   // of a group of an expression
	path   int   // of the path, after a rewrite
	sum    int   // of the texts that are made one after the other
	single int   // of the largest text that ends the steps, or that is only compared
}

// checkSize returns an error if the texts of a program can become too large for one request.
func checkSize(p *Program) error {
	s := &sizes{set: make([]int, p.Variables), groups: headBytes, path: headBytes}
	s.steps(p.Host)
	for i := range p.Locations {
		s.steps(p.Locations[i].Steps)
	}
	s.steps(p.Location)
	for _, a := range p.Answers {
		s.set[a.Variable] = max(s.set[a.Variable], headBytes)
		s.sum = capped(s.sum + headBytes)
	}
	largest := 0 // only one of the changes of responses has an effect
	for _, c := range p.Confs {
		n := 0
		for _, e := range c.Response {
			n = capped(n + s.of(e.Value))
		}
		largest = max(largest, n)
		for _, e := range c.Request {
			s.sum = capped(s.sum + s.of(e.Value))
		}
	}
	if s.sum+s.single+largest > mostMade {
		return fmt.Errorf("so many variables in its texts that one request could need more than %d MiB", mostMade>>20)
	}
	return nil
}

// capped keeps a size from overflowing.
func capped(n int) int { return min(n, mostMade+1) }

func (s *sizes) steps(all []Step) {
	for i := range all {
		one := &all[i]
		n := s.of(one.Text)
		switch one.Kind {
		case Set:
			s.set[one.Variable] = max(s.set[one.Variable], n)
			s.sum = capped(s.sum + n)
		case If:
			of := s.of(one.Condition.Of)
			s.single = max(s.single, of, s.of(one.Condition.Value))
			if one.Condition.Match != "" {
				s.groups = max(s.groups, of)
			}
			s.steps(one.Block)
		case Return:
			s.single = max(s.single, n)
		case Rewrite:
			s.groups = max(s.groups, s.path)
			n = capped(3 * s.of(one.Text)) // it may be percent-encoded
			s.single = max(s.single, n)
			if one.Status == 0 {
				s.path = max(s.path, n)
			}
		}
	}
}

// of is the largest size of a text.
func (s *sizes) of(text Text) (n int) {
	for _, p := range text {
		most, isSmall := small[p.Variable]
		switch {
		case p.Variable == "":
			n += len(p.Text)
		case isSmall:
			n += most
		case strings.HasPrefix(p.Variable, VarPrefix):
			v, _ := strconv.Atoi(p.Variable[len(VarPrefix):])
			n += s.set[v]
		case strings.HasPrefix(p.Variable, GroupPath):
			n += s.groups
		case p.Variable == NormalPath:
			n += s.path
		case p.Variable == "uri_encoded":
			n += 3 * headBytes
		default:
			n += headBytes
		}
		n = capped(n)
	}
	return n
}
