package main

import (
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config/kube"
)

// troubles are why objects cannot be listed or watched. Each is logged once,
// until all is well again.
type troubles struct {
	log *zap.Logger

	mu     sync.Mutex
	kinds  map[kube.Kind]error // that are in trouble
	said   map[string]bool
	newest error
}

// begin notes that a kind cannot be listed or watched.
func (t *troubles) begin(kind kube.Kind, err error, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.kinds == nil {
		t.kinds, t.said = map[kube.Kind]error{}, map[string]bool{}
	}
	t.kinds[kind], t.newest = err, err
	why := rootOf(err)
	if t.said[why] {
		return
	}
	t.said[why] = true
	if known {
		t.log.Warn("the cluster cannot be watched; what is known of it stays in effect", zap.String("kind", string(kind)), zap.Error(err))
		return
	}
	t.log.Error("the cluster's objects cannot be read; weir is not ready until they are", zap.String("kind", string(kind)), zap.Error(err))
}

// rootOf is the error without what was asked for, which differs between kinds.
func rootOf(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

// over notes that a kind can be listed or watched.
func (t *troubles) over(kind kube.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.kinds) == 0 {
		return
	}
	delete(t.kinds, kind)
	if len(t.kinds) == 0 {
		t.said, t.newest = map[string]bool{}, nil
		t.log.Info("the cluster can be watched again")
	}
}

// note is begin without a word.
func (t *troubles) note(_ kube.Kind, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.newest = err
}

// last is the newest trouble, nil where there is none.
func (t *troubles) last() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.newest
}
