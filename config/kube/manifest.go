package kube

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf16"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/controller"
)

// Manifests are objects from YAML or JSON in the format of kubectl.
type Manifests struct {
	Objects
	ConfigMaps []*corev1.ConfigMap
	Slices     []*discoveryv1.EndpointSlice
	Nodes      []*corev1.Node
	Old        []*networkingv1.Ingress // of API versions that no API server supports any more: without their backends
	Unread     []Unread
	// Controllers are the Deployments and DaemonSets that run ingress-nginx's controller.
	Controllers []Controller
	Others      int // objects of other kinds
}

// Controller is an object that runs ingress-nginx's controller.
type Controller struct {
	Kind, Namespace, Name string
	Flags                 map[string]string // without their dashes
}

// ConfigMap returns the ConfigMap that a flag names.
func (c *Controller) ConfigMap(flag string) (config.ObjectName, bool) {
	text := c.Flags[flag]
	name, err := config.ParseObjectName(text)
	return name, err == nil && text != ""
}

// UseMaps lets conversions of the objects find the ConfigMaps that annotations name.
func (m *Manifests) UseMaps() {
	if m.Maps == nil {
		m.Maps = map[config.ObjectName]NamedMap{}
	}
	for _, o := range m.ConfigMaps {
		m.Maps[objectName(o)] = NamedMap{Map: o}
	}
}

// NamedMaps returns the ConfigMaps that keys of ingress-nginx's ConfigMap and annotations of the Ingresses name, as far as
// weir would watch them: first those of keys, then those of the oldest Ingresses. s is what the ConfigMap of ingress-nginx
// sets.
func (m *Manifests) NamedMaps(s *controller.Settings) (names []config.ObjectName) {
	add := func(namespace, name string) {
		if one := (config.ObjectName{Namespace: namespace, Name: name}); name != "" && !slices.Contains(names, one) && len(names) < mostNamed {
			names = append(names, one)
		}
	}
	for _, value := range []string{s.SetHeaders, s.AddHeaders} {
		if name, err := config.ParseObjectName(value); err == nil {
			add(name.Namespace, name.Name)
		}
	}
	oldest := slices.Clone(m.Ingresses)
	slices.SortStableFunc(oldest, func(a, b *networkingv1.Ingress) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, i := range oldest {
		settings := annotation.SettingsOf(s.Keyed(i))
		add(settings.CustomHeaders.Namespace, settings.CustomHeaders.Name)
		add(settings.AuthURL.HeadersFrom.Namespace, settings.AuthURL.HeadersFrom.Name)
	}
	return names
}

// Unread is an object with routes that weir does not read.
type Unread struct{ APIVersion, Kind, Namespace, Name string }

// Read adds the objects in r: documents of one object or of a list, in YAML or JSON.
// The error names the invalid documents; all others were added.
func (m *Manifests) Read(r io.Reader) error {
	text, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	var wrong []error
	for n, document := range documents(readable(text)) {
		if err := m.document(document); err != nil {
			if strings.Contains(document, "{{") {
				err = errors.New("it is a template; render it first, for example with helm template")
			}
			is := " is not a Kubernetes object"
			if errors.As(err, new(badObject)) {
				is = ""
			}
			wrong = append(wrong, fmt.Errorf("document %d%s: %w", n+1, is, err))
		}
	}
	return errors.Join(wrong...)
}

// readable converts text of Windows programs to UTF-8 without a byte order mark.
func readable(text []byte) string {
	if len(text) > 1 && text[0] == 0xff && text[1] == 0xfe { // UTF-16, by PowerShell
		var units []uint16
		for i := 2; i+1 < len(text); i += 2 {
			units = append(units, binary.LittleEndian.Uint16(text[i:]))
		}
		return string(utf16.Decode(units))
	}
	return strings.TrimPrefix(string(text), "\ufeff")
}

// documents are the documents of a YAML stream that are not empty.
func documents(text string) (all []string) {
	var one strings.Builder
	end := func() {
		if strings.TrimSpace(one.String()) != "" {
			all = append(all, one.String())
		}
		one.Reset()
	}
	for line := range strings.Lines(text) {
		switch rest := strings.TrimPrefix(line, "---"); {
		case rest != line && (strings.TrimLeft(rest, " \t\r\n") != rest || rest == ""):
			end()
			one.WriteString(rest)
		case strings.TrimRight(line, " \t\r\n") == "...":
			end()
		case one.Len() == 0 && strings.HasPrefix(line, "%"): // a directive
		default:
			one.WriteString(line)
		}
	}
	end()
	return all
}

func (m *Manifests) document(text string) error {
	if values, ok := jsonValues(text); ok {
		var wrong []error
		for _, object := range values {
			wrong = append(wrong, m.add(object))
		}
		return errors.Join(wrong...)
	}
	object, err := sigsyaml.YAMLToJSON([]byte(text))
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	if strings.TrimSpace(string(object)) == "null" { // nothing but comments
		return nil
	}
	return m.add(object)
}

// jsonValues are the JSON objects of a text; ok is false if the text is not JSON.
func jsonValues(text string) (all []json.RawMessage, ok bool) {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return nil, false
	}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var one json.RawMessage
		switch err := d.Decode(&one); err {
		case nil:
			all = append(all, one)
		case io.EOF:
			return all, true
		default:
			return nil, false
		}
	}
}

func (m *Manifests) add(object []byte) error {
	var head struct {
		metav1.TypeMeta
		Metadata metav1.ObjectMeta
		Items    []json.RawMessage
	}
	if err := json.Unmarshal(object, &head); err != nil {
		return plainly(err)
	}
	switch {
	case head.Kind == "":
		return errors.New("it has no kind")
	case head.APIVersion == "":
		return errors.New("it has no apiVersion")
	}
	if strings.HasSuffix(head.Kind, "List") {
		kind := strings.TrimSuffix(head.Kind, "List")
		var wrong []error
		for _, item := range head.Items {
			if kind != "" { // the items of an IngressList need not contain their kind
				item = withKind(item, head.APIVersion, kind)
			}
			wrong = append(wrong, m.add(item))
		}
		return errors.Join(wrong...)
	}
	if isRouting(head.APIVersion) {
		m.Unread = append(m.Unread, Unread{head.APIVersion, head.Kind, cmp.Or(head.Metadata.Namespace, metav1.NamespaceDefault), head.Metadata.Name})
	}
	if err := m.one(head.APIVersion+"/"+head.Kind, object); err != nil {
		return badObject{fmt.Errorf("%s %q: %w", head.Kind, head.Metadata.Name, plainly(err))}
	}
	return nil
}

// badObject is an error of an object whose kind is known.
type badObject struct{ error }

// plainly says in a sentence why JSON is not of a type, in place of Go's error.
func plainly(err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	kind, _, _ := strings.Cut(wrong.Value, " ") // of a number, the number follows
	has := map[string]string{"array": "a list", "object": "a mapping", "string": "text", "bool": "true or false"}[kind]
	if wrong.Value == "number" {
		has = "a number"
	}
	wants := map[reflect.Kind]string{reflect.Struct: "a mapping", reflect.Map: "a mapping", reflect.Slice: "a list", reflect.String: "text", reflect.Bool: "true or false",
		reflect.Int32: "a whole number", reflect.Int64: "a whole number"}[wrong.Type.Kind()]
	return fmt.Errorf("%s is %s; write %s", cmp.Or(wrong.Field, "it"), cmp.Or(has, "the "+wrong.Value), cmp.Or(wants, "another value"))
}

// isRouting reports whether the API version is for routes.
func isRouting(apiVersion string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return group == "traefik.io" || group == "traefik.containo.us" || group == gatewayv1.GroupName
}

func withKind(item json.RawMessage, apiVersion, kind string) json.RawMessage {
	fields := map[string]json.RawMessage{}
	if json.Unmarshal(item, &fields) != nil {
		return item
	}
	if fields["kind"] == nil {
		fields["kind"], _ = json.Marshal(kind)
		fields["apiVersion"], _ = json.Marshal(apiVersion)
	}
	item, _ = json.Marshal(fields)
	return item
}

// join moves the texts of stringData into the data of a Secret, as the API server does it.
func join(s *corev1.Secret) {
	for name, value := range s.StringData {
		if s.Data == nil {
			s.Data = map[string][]byte{}
		}
		s.Data[name] = []byte(value)
	}
}

func (m *Manifests) one(kind string, object []byte) error {
	switch kind {
	case "networking.k8s.io/v1/IngressClass":
		return decode(object, &m.Classes)
	case "networking.k8s.io/v1/Ingress":
		return decode(object, &m.Ingresses)
	case "extensions/v1beta1/Ingress", "networking.k8s.io/v1beta1/Ingress":
		return decode(object, &m.Old)
	case "v1/Service":
		return decode(object, &m.Services)
	case "v1/Secret":
		if err := decode(object, &m.Secrets); err != nil {
			return err
		}
		join(m.Secrets[len(m.Secrets)-1])
		return nil
	case "v1/Namespace":
		return decode(object, &m.Namespaces)
	case "v1/ConfigMap":
		return decode(object, &m.ConfigMaps)
	case "v1/Node":
		return decode(object, &m.Nodes)
	case "discovery.k8s.io/v1/EndpointSlice":
		return decode(object, &m.Slices)
	case "apps/v1/Deployment", "apps/v1/DaemonSet":
		if err := m.workload(object); err != nil {
			return err
		}
	}
	if known, err := m.gatewayObject(kind, object); known {
		return err
	}
	m.Others++
	return nil
}

// workload notes a Deployment or a DaemonSet that runs ingress-nginx's controller.
func (m *Manifests) workload(object []byte) error {
	var w struct {
		Kind     string
		Metadata metav1.ObjectMeta
		Spec     struct{ Template corev1.PodTemplateSpec }
	}
	if err := json.Unmarshal(object, &w); err != nil {
		return err
	}
	for _, c := range w.Spec.Template.Spec.Containers {
		words := slices.Concat(c.Command, c.Args)
		if controller.IsController(c.Image, words) {
			namespace := cmp.Or(w.Metadata.Namespace, metav1.NamespaceDefault)
			m.Controllers = append(m.Controllers, Controller{w.Kind, namespace, w.Metadata.Name, controller.Flags(expand(words, c.Env, namespace))})
		}
	}
	return nil
}

// expand replaces $(NAME) in arguments, as Kubernetes does when it starts the container. A variable whose value only the
// Pod has stays as it is.
func expand(words []string, env []corev1.EnvVar, namespace string) (expanded []string) {
	pairs := []string{"$(POD_NAMESPACE)", namespace} // of the manifests of ingress-nginx
	for _, e := range env {
		switch from := e.ValueFrom; {
		case from == nil:
			pairs = append([]string{"$(" + e.Name + ")", e.Value}, pairs...)
		case from.FieldRef != nil && from.FieldRef.FieldPath == "metadata.namespace":
			pairs = append(pairs, "$("+e.Name+")", namespace)
		}
	}
	values := strings.NewReplacer(pairs...)
	for _, word := range words {
		expanded = append(expanded, values.Replace(word))
	}
	return expanded
}

// decode appends the object to all. If the object has no namespace, decode sets the
// namespace that kubectl would choose.
func decode[T any, P interface {
	*T
	metav1.Object
}](object []byte, all *[]P) error {
	o := P(new(T))
	if err := json.Unmarshal(object, o); err != nil {
		return err
	}
	namespaced := true
	switch any(o).(type) {
	case *networkingv1.IngressClass, *corev1.Namespace, *corev1.Node, *gatewayv1.GatewayClass:
		namespaced = false
	}
	if namespaced && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	*all = append(*all, o)
	return nil
}
