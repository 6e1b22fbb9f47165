// Package fake is an API server for tests: objects of weir's kinds in memory, with
// resource versions, conflicts and preconditions, and without watches. It counts
// requests, and refuses them or does not answer if the test demands it.
package fake

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// Object is an object in its JSON form.
type Object = map[string]any

// API is an API server and its objects.
type API struct {
	// Kubeconfig is the path of a kubeconfig for this API server.
	Kubeconfig string

	t      testing.TB
	decode runtime.Decoder

	mu      sync.Mutex
	version int
	objects map[string]Object // by path
	refuse  func(Request) int
	before  func(Request) bool
	asked   map[Request]int
}

// Request is a request to the API server.
type Request struct {
	Verb      string // as in RBAC rules
	Resource  string // with its subresource, if any
	Namespace string
}

// New starts an API server that ends with the test.
func New(t testing.TB) *API {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, discoveryv1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c := &API{t: t, decode: serializer.NewCodecFactory(scheme).UniversalDeserializer(), objects: map[string]Object{}, asked: map[Request]int{}}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	c.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"" + s.URL + "\"}}]\nusers: [{name: u, user: {token: t}}]\n" +
		"contexts: [{name: x, context: {cluster: c, user: u, namespace: weir}}]\ncurrent-context: x\n"
	if err := os.WriteFile(c.Kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// Terminating refuses to create an object, as the API server does in a namespace that is
// being deleted: with status 403 and a cause.
const Terminating = -1

// Refuse sets a function that returns the status for a request; 0: the request is served.
// nil: no request is refused.
func (c *API) Refuse(f func(Request) int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = f
}

// Before sets a function that is called before each request is served. It may wait; other
// requests do not wait for it. If it returns false, the request has no effect and no
// answer. nil: there is none.
func (c *API) Before(f func(Request) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = f
}

// Asked returns how often a verb and resource were requested in all namespaces, refused
// or not.
func (c *API) Asked(verb, resource string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r, times := range c.asked {
		if r.Verb == verb && r.Resource == resource {
			n += times
		}
	}
	return n
}

// Objects returns the objects of a resource, by namespace and name.
func (c *API) Objects(resource string) map[string]Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[string]Object{}
	for path, o := range c.objects {
		if part := strings.Split(path, "/"); part[1] == resource {
			found[part[0]+"/"+part[2]] = clone(o)
		}
	}
	return found
}

// Change creates or changes an object; if o is nil, it removes the object.
func (c *API) Change(namespace, resource, name string, o any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	path := namespace + "/" + resource + "/" + name
	if o == nil {
		delete(c.objects, path)
		return
	}
	text, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	var made Object
	if err := json.Unmarshal(text, &made); err != nil {
		c.t.Fatal(err)
	}
	meta := metadata(made)
	meta["namespace"], meta["name"] = namespace, name
	if before := c.objects[path]; before != nil {
		meta["uid"] = metadata(before)["uid"]
	}
	c.keep(path, made)
}

func (c *API) keep(path string, o Object) Object {
	c.version++
	meta := metadata(o)
	meta["resourceVersion"] = strconv.Itoa(c.version)
	if meta["uid"] == nil {
		meta["uid"] = fmt.Sprintf("uid-%d", c.version)
		meta["creationTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	}
	c.objects[path] = o
	return o
}

func metadata(o Object) Object {
	if m, ok := o["metadata"].(Object); ok {
		return m
	}
	m := Object{}
	o["metadata"] = m
	return m
}

func clone(o Object) Object {
	text, _ := json.Marshal(o)
	var other Object
	json.Unmarshal(text, &other)
	return other
}

// ServeHTTP implements http.Handler.
func (c *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	part = part[min(len(part), 2+len(part[0])-len("api")):] // api/v1, apis/GROUP/VERSION
	namespace := ""
	if len(part) > 2 && part[0] == "namespaces" {
		namespace, part = part[1], part[2:]
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || len(part) == 0 {
		fail(w, http.StatusNotFound, "NotFound")
		return
	}
	name, sub := "", ""
	if len(part) > 1 {
		name = part[1]
	}
	if len(part) > 2 {
		sub = part[2]
	}
	verb := map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[r.Method]
	if verb == "get" && name == "" {
		verb = "list"
	}
	asked := Request{verb, strings.TrimSuffix(part[0]+"/"+sub, "/"), namespace}
	c.mu.Lock()
	before := c.before
	c.mu.Unlock()
	if before != nil && !before(asked) {
		panic(http.ErrAbortHandler)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[asked]++
	if c.refuse != nil {
		code := c.refuse(asked)
		if code == Terminating {
			reply(w, http.StatusForbidden, Object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
				"message": "the test wants a namespace that goes away", "details": Object{"causes": []any{Object{"reason": "NamespaceTerminating"}}}})
			return
		}
		if code != 0 {
			fail(w, code, map[int]string{403: "Forbidden", 409: "Conflict", 422: "Invalid", 500: "InternalError", 503: "ServiceUnavailable"}[code])
			return
		}
	}
	c.answer(w, r, asked, namespace+"/"+part[0]+"/"+name, body)
}

func (c *API) answer(w http.ResponseWriter, r *http.Request, asked Request, path string, body []byte) {
	there := c.objects[path]
	if there == nil && asked.Verb != "create" && asked.Verb != "list" {
		fail(w, http.StatusNotFound, "NotFound")
		return
	}
	switch asked.Verb {
	case "get":
		reply(w, http.StatusOK, there)
	case "list":
		c.list(w, r, asked)
	case "create":
		made := c.decoded(body)
		path += metadata(made)["name"].(string)
		if c.objects[path] != nil {
			fail(w, http.StatusConflict, "AlreadyExists")
			return
		}
		metadata(made)["namespace"] = asked.Namespace
		reply(w, http.StatusCreated, c.keep(path, made))
	case "update":
		made := c.decoded(body)
		if v := metadata(made)["resourceVersion"]; v != nil && v != metadata(there)["resourceVersion"] {
			fail(w, http.StatusConflict, "Conflict")
			return
		}
		metadata(made)["uid"] = metadata(there)["uid"]
		reply(w, http.StatusOK, c.keep(path, made))
	case "patch":
		c.patch(w, r, path, body)
	case "delete":
		o := Object{}
		if len(body) > 0 {
			o = c.decoded(body)
		}
		if p, ok := o["preconditions"].(Object); ok {
			meta := metadata(there)
			if p["uid"] != nil && p["uid"] != meta["uid"] || p["resourceVersion"] != nil && p["resourceVersion"] != meta["resourceVersion"] {
				fail(w, http.StatusConflict, "Conflict")
				return
			}
		}
		delete(c.objects, path)
		reply(w, http.StatusOK, Object{"kind": "Status", "apiVersion": "v1", "status": "Success"})
	}
}

// patch merges, and records the manager of the status.
func (c *API) patch(w http.ResponseWriter, r *http.Request, path string, body []byte) {
	var change Object
	if err := json.Unmarshal(body, &change); err != nil || r.Header.Get("Content-Type") != "application/merge-patch+json" {
		fail(w, http.StatusUnsupportedMediaType, "UnsupportedMediaType")
		return
	}
	made := clone(c.objects[path])
	meta := metadata(made)
	for _, key := range []string{"uid", "resourceVersion"} {
		if v := metadata(change)[key]; v != nil && v != meta[key] {
			fail(w, http.StatusConflict, "Conflict")
			return
		}
	}
	before, _ := json.Marshal(made)
	merge(made, change)
	if after, _ := json.Marshal(made); string(before) == string(after) {
		reply(w, http.StatusOK, made) // as the API server does: no new version
		return
	}
	if manager := r.URL.Query().Get("fieldManager"); manager != "" && strings.HasSuffix(r.URL.Path, "/status") {
		meta["managedFields"] = []any{Object{"manager": manager, "operation": "Update", "subresource": "status"}}
	}
	reply(w, http.StatusOK, c.keep(path, made))
}

// merge implements RFC 7396.
func merge(to, change Object) {
	for key, v := range change {
		inner, isObject := v.(Object)
		switch {
		case v == nil:
			delete(to, key)
		case isObject:
			below, ok := to[key].(Object)
			if !ok {
				below = Object{}
				to[key] = below
			}
			merge(below, inner)
		default:
			to[key] = v
		}
	}
}

func (c *API) list(w http.ResponseWriter, r *http.Request, asked Request) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || r.URL.Query().Get("watch") != "" {
		fail(w, http.StatusBadRequest, "BadRequest")
		return
	}
	onlyMetadata := strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList")
	items := []any{}
	for _, path := range slices.Sorted(maps.Keys(c.objects)) {
		part, o := strings.Split(path, "/"), c.objects[path]
		set := labels.Set{}
		if all, ok := metadata(o)["labels"].(Object); ok {
			for k, v := range all {
				set[k] = v.(string)
			}
		}
		if part[1] != asked.Resource || asked.Namespace != "" && part[0] != asked.Namespace || !selector.Matches(set) {
			continue
		}
		if onlyMetadata {
			o = Object{"metadata": o["metadata"]}
		}
		items = append(items, o)
	}
	list := Object{"metadata": Object{"resourceVersion": strconv.Itoa(c.version)}, "items": items}
	if onlyMetadata {
		list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
	} else {
		kind, version := map[string]string{"leases": "Lease", "secrets": "Secret", "ingresses": "Ingress", "events": "Event", "services": "Service", "nodes": "Node"}[asked.Resource], "v1"
		switch kind {
		case "Lease":
			version = "coordination.k8s.io/v1"
		case "Ingress":
			version = "networking.k8s.io/v1"
		}
		list["kind"], list["apiVersion"] = kind+"List", version
	}
	reply(w, http.StatusOK, list)
}

// decoded decodes an object from the encoding that the client used.
func (c *API) decoded(body []byte) Object {
	o, kind, err := c.decode.Decode(body, nil, nil)
	if err != nil {
		var plain Object
		if json.Unmarshal(body, &plain) == nil {
			return plain
		}
		c.t.Errorf("a request cannot be read: %v", err)
		return Object{}
	}
	o.GetObjectKind().SetGroupVersionKind(*kind)
	text, _ := json.Marshal(o)
	var made Object
	json.Unmarshal(text, &made)
	return made
}

func reply(w http.ResponseWriter, code int, o Object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(o)
}

func fail(w http.ResponseWriter, code int, reason string) {
	reply(w, code, Object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "the test wants " + reason})
}
