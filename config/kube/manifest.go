package kube

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// Manifests are objects that were read from YAML or JSON, as kubectl prints and takes them.
type Manifests struct {
	Objects
	ConfigMaps []*corev1.ConfigMap
	Slices     []*discoveryv1.EndpointSlice
	Nodes      []*corev1.Node
	Others     int // objects of other kinds
}

// Read adds what is in r: documents of one object or of a list of them. The
// error says which document is none; those before it were added.
func (m *Manifests) Read(r io.Reader) error {
	documents := yaml.NewYAMLReader(bufio.NewReader(r))
	for n := 1; ; n++ {
		text, err := documents.Read()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = m.document(text)
		}
		if err != nil {
			return fmt.Errorf("document %d is no Kubernetes object: %w", n, err)
		}
	}
}

func (m *Manifests) document(text []byte) error {
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	object, err := sigsyaml.YAMLToJSON(text)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(object)) == "null" { // nothing but comments
		return nil
	}
	return m.add(object)
}

func (m *Manifests) add(object []byte) error {
	var head struct {
		metav1.TypeMeta
		Items []json.RawMessage
	}
	if err := json.Unmarshal(object, &head); err != nil {
		return err
	}
	if head.Kind == "" {
		return errors.New("it has no kind")
	}
	if strings.HasSuffix(head.Kind, "List") {
		kind := strings.TrimSuffix(head.Kind, "List")
		for _, item := range head.Items {
			if kind != "" { // the items of an IngressList need not say what they are
				item = withKind(item, head.APIVersion, kind)
			}
			if err := m.add(item); err != nil {
				return err
			}
		}
		return nil
	}
	return m.one(head.APIVersion+"/"+head.Kind, object)
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

func (m *Manifests) one(kind string, object []byte) error {
	switch kind {
	case "networking.k8s.io/v1/IngressClass":
		return decode(object, &m.Classes)
	case "networking.k8s.io/v1/Ingress":
		return decode(object, &m.Ingresses)
	case "v1/Service":
		return decode(object, &m.Services)
	case "v1/Secret":
		return decode(object, &m.Secrets)
	case "v1/Namespace":
		return decode(object, &m.Namespaces)
	case "v1/ConfigMap":
		return decode(object, &m.ConfigMaps)
	case "v1/Node":
		return decode(object, &m.Nodes)
	case "discovery.k8s.io/v1/EndpointSlice":
		return decode(object, &m.Slices)
	}
	m.Others++
	return nil
}

// decode adds the object to all. An object of no namespace is in that which
// kubectl would put it in.
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
	case *networkingv1.IngressClass, *corev1.Namespace, *corev1.Node:
		namespaced = false
	}
	if namespaced && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	*all = append(*all, o)
	return nil
}
