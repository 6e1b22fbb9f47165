package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/gateway"
)

// assumedMap returns the ConfigMap of ingress-nginx for input that has none. It allows snippets, and the HTTP headers of
// custom-headers.
func assumedMap(m *kube.Manifests) *corev1.ConfigMap {
	var allowed []string
	for _, o := range m.ConfigMaps {
		allowed = slices.AppendSeq(allowed, maps.Keys(o.Data))
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ingress-nginx", Name: "ingress-nginx-controller"},
		Data: map[string]string{"allow-snippet-annotations": "true", "hsts": "false", "global-allowed-response-headers": strings.Join(allowed, ",")}}
}

// gatewayName returns the value of --gateway-api.
func gatewayName(value string) (config.ObjectName, error) {
	if info, err := os.Stat(value); err == nil && info.Mode().IsRegular() {
		return config.ObjectName{}, fmt.Errorf("%q is a file; write --gateway-api NAMESPACE/NAME FILE", value)
	}
	name, err := config.ParseObjectName(value)
	if err != nil {
		err = fmt.Errorf("--gateway-api is %q, which %w; write the namespace and the name of a Gateway, such as infra/edge", value, err)
	}
	return name, err
}

// printAsGateway prints Ingresses as objects of the Gateway API, after comments with what to do.
func printAsGateway(out io.Writer, m *kube.Manifests, name config.ObjectName) error {
	made, text, err := asGateway(m, name)
	if err != nil {
		return err
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, "# "+format+"\n", args...) }
	line("Ingresses as objects of the Gateway API, made by weir migrate.")
	line("weir needs the section kubernetes.gateways, and a GatewayClass weir with the controllerName %s.", config.DefaultGatewayController)
	line("Apply the objects, test them at the address of the Gateway, change DNS, then delete the Ingresses.")
	for _, part := range []struct {
		title string
		lines []string
	}{{"These stay Ingresses:", made.Stay}, {"Check these differences:", made.Notes}} {
		if len(part.lines) > 0 {
			line("%s", part.title)
		}
		for _, one := range part.lines {
			line("- %s", controller.OneLine(one))
		}
	}
	_, err = io.WriteString(out, b.String()+text)
	return err
}

// asGateway converts Ingresses. Those whose routes weir would not accept stay.
func asGateway(m *kube.Manifests, name config.ObjectName) (made *kube.AsGateway, text string, err error) {
	cfg, err := file.Parse("lint", []byte(lintConfig), os.LookupEnv)
	if err != nil { // a test loads lintConfig
		panic(err)
	}
	m.UseMaps()
	objects := kube.Objects{Services: m.Services, Secrets: m.Secrets, Maps: m.Maps, Controller: controllerMap(m)}
	assumed := objects.Controller == nil
	if assumed {
		objects.Controller = assumedMap(m)
	}
	cfg.Kubernetes.IngressNginx = &config.IngressNginx{ConfigMap: config.ObjectName{Namespace: objects.Controller.Namespace, Name: objects.Controller.Name}}
	for _, ingresses := range byClass(m.Ingresses, cfg.Kubernetes.Class) {
		objects.Ingresses = append(objects.Ingresses, ingresses...)
	}
	stay := map[config.ObjectName]string{}
	for {
		made = kube.ToGateway(cfg, &objects, name, "weir", stay)
		if text, err = documents(made.Objects); err != nil {
			return nil, "", err
		}
		before := len(stay)
		all := &kube.Manifests{Objects: kube.Objects{Services: m.Services, Secrets: m.Secrets}}
		if err := all.Read(strings.NewReader(text)); err != nil {
			return nil, "", err
		}
		gatewayWrongs(all, func(key gateway.Key, message string) {
			if of, known := made.Of[key.ObjectName]; known && key.Kind == gateway.KindHTTPRoute {
				stay[of] = "weir would not accept its route: " + message
			}
		})
		if len(stay) == before {
			break
		}
	}
	if assumed {
		made.Notes[0] = "The input has no ConfigMap of ingress-nginx, so snippets and custom-headers count as allowed, and nothing of it was taken over."
	}
	return made, text, nil
}

// documents returns objects as YAML.
func documents(all []map[string]any) (string, error) {
	var b strings.Builder
	for _, o := range all {
		text, err := sigsyaml.Marshal(o)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	return b.String(), nil
}
