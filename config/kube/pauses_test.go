package kube

import (
	"path"
	"runtime"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/weirproxy/weir/pause"
)

// The loops of a conversion of Gateways offer pauses, so that requests and changes of endpoints never wait for a whole loop.
func TestConversionsOfGatewaysPause(t *testing.T) {
	const routes = 640
	m := manyRoutes(t, routes)
	for _, r := range m.Gateway.HTTP {
		r.UID, r.Generation = types.UID(r.Name), 1
	}
	web := mustRead(t, ingressAndService).Ingresses[0]
	m.Ingresses = append(m.Ingresses, web)
	c := Converter{File: mustParse(t, manyGatewaysConfig)}
	c.Convert(&m.Objects)
	again := web.DeepCopy()
	again.Annotations = map[string]string{AnnotationPreferLocal: "false"}
	m.Ingresses[0] = again
	r := m.Gateway.HTTP[7].DeepCopy()
	r.Generation, r.Spec.Hostnames[0] = 2, "new.example"
	m.Gateway.HTTP[7] = r

	var mu sync.Mutex
	calls := map[string]int{} // by the function that offers the pause
	end := pause.Count(func() {
		var callers [3]uintptr
		frames := runtime.CallersFrames(callers[:runtime.Callers(3, callers[:])])
		frame, more := frames.Next()
		for more && strings.HasSuffix(frame.Function, "pause.InLoop") {
			frame, more = frames.Next()
		}
		mu.Lock()
		defer mu.Unlock()
		calls[path.Base(frame.Function)]++
	})
	c.Convert(&m.Objects)
	end()
	const ofGateway = routes / 7 // at least
	for function, least := range map[string]int{
		"gateway.addRoutes[...]":                    routes / 64,
		"gateway.NewIndex.func2":                    routes / 64,
		"gateway.(*View).Renew":                     routes/100 - 1, // one of 64 in each of the other Gateways
		"gateway.(*View).Attach":                    ofGateway + ofGateway/64,
		"gateway.(*Gateway).separate":               2 * (ofGateway / 64),
		"gateway.(*Gateway).Status":                 ofGateway / 64,
		"kube.(*updating).findContests":             routes / 100,
		"kube.(*updating).contestHost":              routes,
		"kube.(*updating).convert":                  1,
		"kube.(*conversion).gateway":                ofGateway,
		"kube.(*gatewayConversion).tellAnnotations": ofGateway / 64,
		"kube.(*users).add":                         ofGateway / 64,
		"kube.(*users).remove":                      ofGateway / 64,
		"kube.(*updating).keepEqual":                2 * ofGateway,
		"kube.(*updating).edit":                     2,
		"kube.(*results).joinBackends":              ofGateway,
	} {
		if calls[function] < least {
			t.Errorf("%s offers %d pauses for %d routes, not %d; all: %v", function, calls[function], routes, least, calls)
		}
	}
}
