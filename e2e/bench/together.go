package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"

	"github.com/weirproxy/weir/e2e/freeport"
)

// The bench can measure several proxies at the same time. For each proxy there is a separate process with its
// own clients and backend, because one process cannot have enough descriptors for all. The processes take
// each step together, so that each measures while the connections of all others are open.

// part is the result of one process.
type part struct {
	Resident, Sockets float64
	Error             string
}

// oneOfMany is one of the processes. It reports each step on standard output, and then
// waits for a line.
func (o *options) oneOfMany(key string, number, from, to, rate int) error {
	k, err := kindOf(key)
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	first := freeport.Benchmark.First + 50*number // all processes look for free ports at the same time
	f, err := o.slope(k, o.peers[0], from, to, rate, &freeport.Range{First: first, Last: first + 49}, func(step string) {
		fmt.Println(step)
		in.ReadString('\n')
	})
	p := part{Resident: f.resident, Sockets: f.sockets}
	if err != nil {
		p.Error = err.Error()
	}
	return json.NewEncoder(os.Stdout).Encode(p)
}

// many measures n proxies of one kind at the same time.
func (o *options) many(k kind, peer string, n, from, to, rate int) error {
	var all []*member
	defer func() {
		for _, m := range all {
			m.in.Close()
			m.cmd.Wait()
		}
	}()
	for i := range n {
		m, err := o.startMember(k, peer, i, from, to, rate/n)
		if err != nil {
			return err
		}
		all = append(all, m)
	}
	before, err := lookAtKernel()
	if err != nil {
		return err
	}
	var after kernelMemory
	for step := range len(steps) {
		if err := together(all, func(m *member) error { return m.reaches(steps[step]) }); err != nil {
			return err
		}
		if step == len(steps)-1 {
			if after, err = lookAtKernel(); err != nil {
				return err
			}
		}
		for _, m := range all {
			io.WriteString(m.in, "go on\n")
		}
	}
	if err := together(all, (*member).end); err != nil {
		return err
	}
	fmt.Printf("%s, %d x %s, %d connections at once\n", k.name, n, peer, n*to)
	for i, m := range all {
		fmt.Printf("  process %2d: %6.2f KiB per connection, %.2f descriptors\n", i+1, m.part.Resident, m.part.Sockets)
	}
	fmt.Printf("  kernel: %s\n", after.since(before))
	return nil
}

// steps are the steps that slope reports.
var steps = []string{"ready", "open", "ready", "open", "measured"}

// member is one of the processes, as the parent process sees it.
type member struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	part part
}

func (o *options) startMember(k kind, peer string, number, from, to, rate int) (*member, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m := &member{cmd: exec.Command(self, "memory", "-peers", peer, "-kinds", k.key, "-weir", o.weir, "-one", fmt.Sprint(number),
		"-from", fmt.Sprint(from), "-to", fmt.Sprint(to), "-rate", fmt.Sprint(max(1, rate)))}
	m.cmd.Stderr = os.Stderr
	m.cmd.SysProcAttr = childAttributes()
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.out = bufio.NewReader(out)
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return m, m.cmd.Start()
}

// reaches waits until the member reports the step.
func (m *member) reaches(step string) error {
	line, err := m.out.ReadString('\n')
	if strings.TrimSpace(line) == step {
		return nil
	}
	if json.Unmarshal([]byte(line), &m.part) == nil && m.part.Error != "" {
		return fmt.Errorf("one of them failed: %s", m.part.Error)
	}
	return fmt.Errorf("one of them says %q instead of %q: %w", line, step, err)
}

// end reads the result of the member.
func (m *member) end() error {
	line, err := m.out.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &m.part); err != nil {
		return err
	}
	if m.part.Error != "" {
		return fmt.Errorf("one of them failed: %s", m.part.Error)
	}
	return nil
}

// together calls f for all members at the same time, and returns one of the errors.
func together(all []*member, f func(*member) error) error {
	var running sync.WaitGroup
	failed := make(chan error, len(all))
	for _, m := range all {
		running.Go(func() {
			if err := f(m); err != nil {
				failed <- err
			}
		})
	}
	running.Wait()
	if len(failed) > 0 {
		return <-failed
	}
	return nil
}
