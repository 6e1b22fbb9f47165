package kube

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

// refuse makes requests for a kind fail; nil: it serves them.
func (w *watched) refuse(kind Kind, err error) {
	w.server.mu.Lock()
	w.refused[kind] = err
	w.server.mu.Unlock()
	w.of(kind).ResetWatch()
}

// wantAnswers checks how often the Source has said that it can watch all objects again.
func (w *watched) wantAnswers(t *testing.T, want int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answers != want {
		t.Errorf("the Source said %d times that it can watch again, want %d", w.answers, want)
	}
}

// again is the longest time after an outage until weir can say that all watches work.
const again = 8 * time.Second

// After an outage weir says once that it can watch again: when every kind has a watch that works.
func TestEveryKindIsWatchedAgain(t *testing.T) {
	observe(t, plainConfig, ingressAndService, func(t *testing.T, w *watched) {
		time.Sleep(time.Minute)
		w.wantAnswers(t, 0) // there was no outage
		for n, broken := range []Kind{Secrets, Services, EndpointSlices} {
			w.set(syscall.ECONNREFUSED)
			time.Sleep(time.Minute)
			w.refuse(broken, errors.New("the API server is not ready"))
			w.set(nil)
			time.Sleep(10 * time.Minute)
			w.wantAnswers(t, n)
			w.refuse(broken, nil)
			time.Sleep(again)
			w.wantAnswers(t, n+1)
		}
	})
}

// At the start, that includes kinds whose version weir could not know before.
func TestEveryKindIsWatchedAtTheStart(t *testing.T) {
	o := &offer{}
	o.set(errors.New("down"))
	observeGateways(t, o, "", func(t *testing.T, w *watched) {
		w.refuse(versioned(HTTPRoutes, "v1"), errors.New("the API server is not ready"))
		time.Sleep(time.Minute)
		o.set(nil, strings.Fields(everyGatewayKind)...)
		time.Sleep(time.Minute)
		w.wantAnswers(t, 0)
		w.refuse(versioned(HTTPRoutes, "v1"), nil)
		time.Sleep(again)
		w.wantAnswers(t, 1)

		w.refuse(versioned(HTTPRoutes, "v1"), errors.New("the API server is not ready"))
		time.Sleep(time.Minute)
		o.set(nil) // the kinds are gone, and so is the trouble
		time.Sleep(lookForKinds + again)
		w.wantAnswers(t, 2)
	})
}
