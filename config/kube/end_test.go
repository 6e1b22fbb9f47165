package kube

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// An API server that refuses connections does not delay the end of Run.
func TestRunEndsWithoutTheAPIServer(t *testing.T) {
	for _, known := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t)
			s.put(ingressAndService)
			if !known {
				s.down = syscall.ECONNREFUSED
			}
			source, err := NewSource(Options{File: mustParse(t, plainConfig), List: s.List, Changed: func(Change) {}, Trouble: func(Kind, error) {}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { defer close(ended); source.Run(ctx) }()
			time.Sleep(5 * time.Minute)
			s.set(syscall.ECONNREFUSED)
			time.Sleep(5*time.Minute + 100*time.Millisecond)
			begun := time.Now()
			cancel()
			<-ended
			if took := time.Since(begun); took > endPatience {
				t.Errorf("Run ended %s after its context; all objects known before: %t", took, known)
			}
			s.shutdown()
		})
	}
}
