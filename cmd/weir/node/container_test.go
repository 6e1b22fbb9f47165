package node

import (
	"strings"
	"testing"
)

func TestEndsContainer(t *testing.T) {
	for _, one := range []struct {
		pid, parent int
		first, want string // want: empty means that no container ends
	}{
		{1, 0, "weir", "process 1"},
		{7, 0, "pause", "main process"},
		{7, 1, "tini", "child of tini"},
		{7, 1, "docker-init", "child of docker-init"},
		{7, 6, "tini", ""},
		{7, 1, "systemd", ""},
		{7, 1, "bash", ""},
		{7, 1, "", ""},
	} {
		got := endsContainer(one.pid, one.parent, one.first)
		if (got == "") != (one.want == "") || !strings.Contains(got, one.want) {
			t.Errorf("process %d, parent %d, first %q: %q, and not %q", one.pid, one.parent, one.first, got, one.want)
		}
	}
}
