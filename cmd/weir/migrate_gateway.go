package main

import (
	"fmt"
	"io"
	"strings"

	sigsyaml "sigs.k8s.io/yaml"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/controller"
)

// printAsGateway prints Ingresses as objects of the Gateway API, after comments with what to do.
func printAsGateway(out io.Writer, m *kube.Manifests, gateway string) error {
	name, err := config.ParseObjectName(gateway)
	if err != nil {
		return fmt.Errorf("--gateway-api is %q, which %w; write the namespace and the name of a Gateway, such as infra/edge", gateway, err)
	}
	made := kube.ToGateway(m.Ingresses, m.Services, name, "weir")
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
	for _, o := range made.Objects {
		text, err := sigsyaml.Marshal(o)
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "---\n%s", text)
	}
	_, err = io.WriteString(out, b.String())
	return err
}
