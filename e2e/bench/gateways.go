package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/e2e/freeport"
)

// The limits with manyRoutes HTTPRoutes, at the 99th percentile.
const (
	gatewayRouteDelay    = 300 * time.Millisecond
	gatewayEndpointDelay = 50 * time.Millisecond
)

// The addresses belong to this machine in the network namespace of the bench. Gateways get those of
// gatewayPool, and the Services have one of the two Pods.
const (
	gatewayNetwork = "10.10.0.0/16"
	gatewayPool    = "10.10.0.0/20"
)

var gatewayPods = []string{"10.10.200.1", "10.10.200.2"}

// gatewaysMain measures weir with many HTTPRoutes on many Gateways. A part of an API server in this process
// changes routes and endpoints at a steady rate. Requests find out when each change is served.
func gatewaysMain(args []string) error {
	flags := flag.NewFlagSet("gateways", flag.ExitOnError)
	var o options
	c := gatewayBench{}
	flags.IntVar(&c.ingresses, "routes", manyRoutes, "HTTPRoutes, each with a host and a Service with one Pod")
	flags.IntVar(&c.gateways, "gateways", 100, "Gateways, each with an address of its own")
	flags.IntVar(&c.changes, "changes", 400, "changes of routes, and of endpoints")
	flags.DurationVar(&c.every, "every", 50*time.Millisecond, "time between two changes of routes, and of endpoints")
	flags.IntVar(&o.threads, "threads", 1, "threads of weir that run Go code (GOMAXPROCS)")
	flags.StringVar(&o.weir, "weir", "", "weir binary (default: built from this source)")
	flags.StringVar(&o.profile, "profile", "", "write profiles of weir to this folder: of the heap when all is read, and of the CPU during the changes")
	flags.Parse(args)
	if c.gateways < 1 || c.gateways > 4000 || c.ingresses < 2*c.gateways || c.every <= 0 {
		return errors.New("-gateways has to be 1 to 4000, -routes at least twice as many, and -every more than 0")
	}
	c.options = &o
	return o.weirAlone(func() error {
		if out, err := exec.Command("ip", "route", "add", "local", gatewayNetwork, "dev", "lo").CombinedOutput(); err != nil {
			return fmt.Errorf("the Gateways need addresses in a network namespace of root: %w: %s", err, out)
		}
		return c.measure()
	})
}

type gatewayBench struct {
	manyIngresses
	gateways int
	visitor  *http.Client
}

// measure runs all steps, and prints the result.
func (c *gatewayBench) measure() error {
	dir, err := os.MkdirTemp("", "weir-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if c.setup, err = newSetup(dir, freeport.Benchmark); err != nil {
		return err
	}
	for i, pod := range gatewayPods {
		l, err := net.Listen("tcp", pod+":8080")
		if err != nil {
			return err
		}
		defer l.Close()
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, strconv.Itoa(i)) }))
	}
	if err := c.fill(); err != nil {
		return err
	}
	c.visitor = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	begun := time.Now()
	c.weir, err = c.startWeir(dir)
	if err != nil {
		return err
	}
	defer c.weir.stop()
	if _, err := c.await(c.ingresses-1, "/", "0", 5*time.Minute); err != nil {
		return fmt.Errorf("%w; weir %s: %s", err, c.weir.state(), c.weir.output())
	}
	fmt.Printf("%d HTTPRoutes on %d Gateways, %d threads\nserved %.1f s after the start\n", c.ingresses, c.gateways, c.threads, time.Since(begun).Seconds())
	time.Sleep(5 * time.Second) // until weir has returned the memory of its start
	if err := c.heap("ready"); err != nil {
		return err
	}
	if _, _, err := c.memory("when all is read"); err != nil {
		return err
	}
	return c.change()
}

// fill makes the objects, and writes the kubeconfig and the configuration.
func (c *gatewayBench) fill() (err error) {
	if c.api, err = newClusterAPI(); err != nil {
		return err
	}
	c.api.addGateways()
	url, err := c.api.serve()
	if err != nil {
		return err
	}
	class := &gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "weir", UID: newUID(), Generation: 1}}
	class.Spec.ControllerName = "weirproxy.github.io/gateway"
	c.api.put(gatewayPath+"gatewayclasses", class)
	for i := range c.gateways {
		c.api.put(gatewayPath+"gateways", c.gatewayNo(i))
	}
	for i := range c.ingresses {
		c.api.put(gatewayPath+"httproutes", c.routeNo(i, 1, "/"))
		c.api.put("/api/v1/services", c.inTenant(i, clusterService(i)))
		c.api.put("/apis/discovery.k8s.io/v1/endpointslices", c.sliceNo(i, 0))
	}
	return c.configure(url, fmt.Sprintf(", gateways: {addresses: {pool: [%s]}}", gatewayPool))
}

const gatewayPath = "/apis/gateway.networking.k8s.io/v1/"

// addGateways adds the kinds that weir reads for Gateways.
func (a *clusterAPI) addGateways() {
	version := metav1.GroupVersionForDiscovery{GroupVersion: gatewayv1.GroupVersion.String(), Version: "v1"}
	resources := metav1.APIResourceList{GroupVersion: version.GroupVersion}
	custom := func(resource, kind string, list func() runtime.Object) {
		a.kinds[gatewayPath+resource] = &kindAPI{kind: metav1.TypeMeta{APIVersion: version.GroupVersion, Kind: kind}, custom: true, list: list, objects: map[types.NamespacedName]runtime.Object{}}
		resources.APIResources = append(resources.APIResources, metav1.APIResource{Name: resource, Kind: kind, Verbs: metav1.Verbs{"list", "watch"}})
	}
	custom("gatewayclasses", "GatewayClass", func() runtime.Object { return &gatewayv1.GatewayClassList{} })
	custom("gateways", "Gateway", func() runtime.Object { return &gatewayv1.GatewayList{} })
	custom("httproutes", "HTTPRoute", func() runtime.Object { return &gatewayv1.HTTPRouteList{} })
	a.kinds["/api/v1/namespaces"] = &kindAPI{kind: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, list: func() runtime.Object { return &corev1.NamespaceList{} }, objects: map[types.NamespacedName]runtime.Object{}}
	a.kinds["/api/v1/configmaps"] = &kindAPI{kind: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, list: func() runtime.Object { return &corev1.ConfigMapList{} }, objects: map[types.NamespacedName]runtime.Object{}}
	a.pages = map[string]any{
		"/apis/gateway.networking.k8s.io":    metav1.APIGroup{Name: gatewayv1.GroupName, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
		"/apis/gateway.networking.k8s.io/v1": resources,
	}
}

// inTenant moves an object to the namespace of the Gateway that has its route.
func (c *gatewayBench) inTenant(i int, o runtime.Object) runtime.Object {
	o.(metav1.Object).SetNamespace(fmt.Sprintf("tenant-%d", i%c.gateways))
	return o
}

// gatewayNo is a Gateway. Its status has the address that it keeps.
func (c *gatewayBench) gatewayNo(i int) runtime.Object {
	g := &gatewayv1.Gateway{ObjectMeta: clusterMeta("Gateway", i)}
	g.Name = "edge"
	g.Spec.GatewayClassName = "weir"
	g.Spec.Listeners = []gatewayv1.Listener{{Name: "web", Port: gatewayv1.PortNumber(80), Protocol: gatewayv1.HTTPProtocolType}}
	g.Status.Addresses = []gatewayv1.GatewayStatusAddress{{Value: c.addressOf(i)}}
	return c.inTenant(i, g)
}

// addressOf is the address of the Gateway that has a route.
func (c *gatewayBench) addressOf(i int) string {
	return fmt.Sprintf("10.10.%d.%d", i%c.gateways/250+1, i%c.gateways%250+1)
}

// routeNo is a route with a status as a controller writes it.
func (c *gatewayBench) routeNo(i, generation int, path string) runtime.Object {
	r := &gatewayv1.HTTPRoute{ObjectMeta: clusterMeta("HTTPRoute", i)}
	r.UID, r.Generation = "", int64(generation) // the UID is the same in all generations
	exact, port := gatewayv1.PathMatchExact, gatewayv1.PortNumber(80)
	parent := gatewayv1.ParentReference{Name: "edge"}
	r.Spec.ParentRefs, r.Spec.Hostnames = []gatewayv1.ParentReference{parent}, []gatewayv1.Hostname{gatewayv1.Hostname(clusterHost(i))}
	backend := gatewayv1.HTTPBackendRef{}
	backend.Name, backend.Port = gatewayv1.ObjectName(r.Name), &port
	r.Spec.Rules = []gatewayv1.HTTPRouteRule{{Matches: []gatewayv1.HTTPRouteMatch{{Path: &gatewayv1.HTTPPathMatch{Type: &exact, Value: &path}}}, BackendRefs: []gatewayv1.HTTPBackendRef{backend}}}
	condition := func(kind string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, ObservedGeneration: int64(generation), LastTransitionTime: r.CreationTimestamp, Reason: kind, Message: "The route is attached."}
	}
	r.Status.Parents = []gatewayv1.RouteParentStatus{{ParentRef: parent, ControllerName: "weirproxy.github.io/gateway", Conditions: []metav1.Condition{condition("Accepted"), condition("ResolvedRefs")}}}
	return c.inTenant(i, r)
}

// sliceNo is the EndpointSlice of a route's Service, with one Pod.
func (c *gatewayBench) sliceNo(i, pod int) runtime.Object {
	o := clusterSlice(i, 1)
	o.Endpoints[0].Addresses[0], o.Endpoints[0].TargetRef.UID = gatewayPods[pod], ""
	return c.inTenant(i, o)
}

// await requests a path of a route until a Pod answers, and returns the time of that.
func (c *gatewayBench) await(i int, path, pod string, patience time.Duration) (time.Time, error) {
	deadline := time.Now().Add(patience)
	for {
		status, text, err := c.ask(i, path)
		now := time.Now()
		switch {
		case err == nil && status == http.StatusOK && text == pod:
			return now, nil
		case now.After(deadline):
			return now, fmt.Errorf("a request for %s%s at %s gets the status %d, the text %q and the error %v, and not an answer of Pod %s", clusterHost(i), path, c.addressOf(i), status, text, err, pod)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (c *gatewayBench) ask(i int, path string) (status int, text string, err error) {
	r, err := http.NewRequest("GET", "http://"+c.addressOf(i)+path, nil)
	if err != nil {
		return 0, "", err
	}
	r.Host = clusterHost(i)
	resp, err := c.visitor.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// delays are the times that changes took. Several goroutines may add some.
type delays struct {
	mu   sync.Mutex
	took []time.Duration
	err  error
}

func (d *delays) add(took time.Duration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.took, d.err = append(d.took, took), errors.Join(d.err, err)
}

// print prints the delays and whether they are within the limit.
func (d *delays) print(of string, limit time.Duration) {
	slices.Sort(d.took)
	at := func(percent int) time.Duration { return d.took[len(d.took)*percent/100] }
	fast := at(99) <= limit
	fmt.Printf("%d changes of %s: served after %s (median), %s (p90), %s (p99), %s (slowest); p99 must be at most %s: %s\n",
		len(d.took), of, ms(at(50)), ms(at(90)), ms(at(99)), ms(d.took[len(d.took)-1]), limit, verdict(&fast))
}

// change changes one route and the endpoints of another at each step. A step does not wait for the changes
// before it.
func (c *gatewayBench) change() error {
	idle, err := c.cpuOf(5*time.Second, func() error { return nil })
	if err != nil {
		return err
	}
	profiled := make(chan error, 1)
	length := time.Duration(c.changes) * c.every
	if c.profile != "" {
		url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/profile?seconds=%d", c.setup.AdminPort, max(1, int(length.Seconds())))
		go func() { profiled <- writeProfile(url, c.profile, "changes") }()
	} else {
		profiled <- nil
	}
	var routes, endpoints delays
	busy, err := c.cpuOf(length, func() error {
		var running sync.WaitGroup
		tick := time.NewTicker(c.every)
		defer tick.Stop()
		half := c.ingresses / 2
		for n := range c.changes {
			<-tick.C
			i, path := n%half, fmt.Sprintf("/v%d", n)
			begun := time.Now()
			c.api.put(gatewayPath+"httproutes", c.routeNo(i, n+2, path))
			running.Go(func() {
				at, err := c.await(i, path, "0", time.Minute)
				routes.add(at.Sub(begun), err)
			})
			j, pod := half+n%half, (n/half+1)%2
			changed := time.Now()
			c.api.put("/apis/discovery.k8s.io/v1/endpointslices", c.sliceNo(j, pod))
			running.Go(func() {
				at, err := c.await(j, "/", strconv.Itoa(pod), time.Minute)
				endpoints.add(at.Sub(changed), err)
			})
		}
		running.Wait()
		return errors.Join(routes.err, endpoints.err)
	})
	if err := errors.Join(err, <-profiled); err != nil {
		return err
	}
	routes.print("routes", gatewayRouteDelay)
	endpoints.print("endpoints", gatewayEndpointDelay)
	each := (busy.Seconds() - idle.Seconds()*length.Seconds()/5) / float64(c.changes)
	fmt.Printf("CPU: %.1f ms for each change of a route and of an endpoint, with the requests that wait for them; %.1f ms a second without changes\n", 1000*each, idle.Seconds()*200)
	_, _, err = c.memory("after the changes")
	return err
}
