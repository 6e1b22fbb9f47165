package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/controller"
)

// migration is a move from one ingress-nginx to weir.
type migration struct {
	objects    *kube.Manifests
	controller *kube.Controller  // nil: the input has no Deployment or DaemonSet of it
	configMap  *corev1.ConfigMap // nil: none
	of         controller.Installation
	ingresses  []*networkingv1.Ingress // of its classes
}

func newMigrateCommand() *cobra.Command {
	var source linting
	var which, asGateway string
	c := &cobra.Command{
		Use:   "migrate FILE|- ...",
		Short: "Print how to move from ingress-nginx to weir",
		Long: `Migrate reads Kubernetes manifests from files, standard input or a cluster. It
prints the configuration of weir that replaces the flags and the ConfigMap of
ingress-nginx's controller, and before it, as comments, what to change and in
which order. It changes nothing.

With --gateway-api it prints the Ingresses as objects of the Gateway API instead.
Ingresses that ask for anything that the Gateway API does not have stay Ingresses,
and comments name them. weir serves both kinds side by side.

Without a Deployment or DaemonSet of the controller, migrate takes a ConfigMap
that looks like the controller's, and the default flags.`,
		Example: `  weir migrate --cluster > weir.yaml
  helm template ingress-nginx/ingress-nginx | weir migrate -
  weir migrate --cluster --gateway-api infra/edge > gateway.yaml`,
		SuggestFor:            []string{"convert", "import", "adapt"},
		DisableFlagsInUseLine: true,
		Args:                  source.args,
		RunE: func(c *cobra.Command, args []string) error {
			m, err := source.read(c, args)
			if m == nil {
				return err
			}
			if asGateway != "" {
				return errors.Join(err, printAsGateway(c.OutOrStdout(), m, asGateway))
			}
			move, wrong := newMigration(m, which)
			if wrong != nil {
				return errors.Join(err, wrong)
			}
			move.print(c.OutOrStdout())
			return err
		},
	}
	source.sourceFlags(c)
	c.Flags().StringVar(&which, "controller", "", "the `NAMESPACE/NAME` of the controller's Deployment or DaemonSet, if there are several")
	c.Flags().StringVar(&asGateway, "gateway-api", "", "print the Ingresses as objects of the Gateway API, for a Gateway of this `NAMESPACE/NAME`")
	return c
}

func newMigration(m *kube.Manifests, which string) (*migration, error) {
	move := &migration{objects: m}
	var names []string
	for i := range m.Controllers {
		c := &m.Controllers[i]
		name := c.Namespace + "/" + c.Name
		names = append(names, name)
		if which == "" && len(m.Controllers) == 1 || which == name {
			move.controller = c
		}
	}
	switch {
	case move.controller != nil:
		move.of.Flags = move.controller.Flags
	case which != "":
		return nil, fmt.Errorf("--controller is %q, and the input has no such Deployment or DaemonSet of ingress-nginx; it has: %s", which, cmp.Or(strings.Join(names, ", "), "none"))
	case len(names) > 1:
		return nil, fmt.Errorf("the input has several controllers of ingress-nginx; name one with --controller: %s", strings.Join(names, ", "))
	}
	move.findConfigMap()
	move.findClasses()
	return move, nil
}

func (m *migration) findConfigMap() {
	if m.controller != nil {
		name, ok := m.controller.ConfigMap("configmap")
		if !ok {
			return
		}
		m.of.ConfigMap = name
		for _, o := range m.objects.ConfigMaps {
			if o.Namespace == name.Namespace && o.Name == name.Name {
				m.configMap, m.of.Data = o, o.Data
			}
		}
		return
	}
	for _, o := range m.objects.ConfigMaps {
		if controller.IsConfigMap(o.Name, o.Data) {
			m.configMap, m.of.Data, m.of.ConfigMap = o, o.Data, config.ObjectName{Namespace: o.Namespace, Name: o.Name}
		}
	}
}

// findClasses finds the classes of the controller, and their Ingresses.
func (m *migration) findClasses() {
	ours := cmp.Or(m.of.Flags["controller-class"], "k8s.io/ingress-nginx")
	for _, c := range m.objects.Classes {
		if c.Spec.Controller == ours {
			m.of.Classes = append(m.of.Classes, c.Name)
		}
	}
	slices.Sort(m.of.Classes)
	old := cmp.Or(m.of.Flags["ingress-class"], "nginx")
	for _, i := range m.objects.Ingresses {
		class, annotated := i.Annotations["kubernetes.io/ingress.class"]
		if !annotated && i.Spec.IngressClassName != nil {
			class = *i.Spec.IngressClassName
		}
		if slices.Contains(m.of.Classes, class) || class == old || class == "" {
			m.ingresses = append(m.ingresses, i)
		}
	}
}

// print writes the steps as comments, and the configuration.
func (m *migration) print(out io.Writer) {
	text, changes := m.of.File()
	fmt.Fprintf(out, "# The configuration of weir in place of %s, made by weir migrate.\n", m.what())
	fmt.Fprintln(out, "# In the chart, the keys belong below config:, without the addresses of the listeners.")
	fmt.Fprintln(out, "#")
	fmt.Fprintln(out, "# What to do, in this order:")
	closed, different := m.effects()
	n := 0
	step := func(title string, items []string) {
		n++
		fmt.Fprintf(out, "#\n# %d. %s\n", n, title)
		for _, item := range items {
			fmt.Fprintf(out, "#    - %s\n", controller.OneLine(item))
		}
	}
	if len(changes) > 0 {
		step("Change this file:", changes)
	}
	if len(closed) > 0 {
		step("Change these Ingresses, keys and flags. weir answers 503 for them:", closed)
	}
	if len(different) > 0 {
		step("Check these. weir serves them, but ignores the annotation, the key or the flag:", different)
	}
	if wrong := m.wrong(); len(wrong) > 0 {
		step("Correct what weir cannot serve:", wrong)
	}
	if service, ok := m.of.DefaultBackend(); ok {
		step("Create an Ingress for the default backend (--default-backend-service):", m.defaultBackend(service))
	}
	step("Run weir beside ingress-nginx with this file (publish: none), and test it at its own address.", []string{streams})
	step("Move the load balancer or DNS to weir, and replace publish: none.", nil)
	step("Remove ingress-nginx, but keep "+m.kept()+".", nil)
	fmt.Fprintf(out, "\n%s", text)
}

// streams names the keys for clients that wait for long.
const streams = "gRPC calls and server-sent events may be silent for 1h (timeouts.stream_idle); the answer to a long poll must begin within 5m (timeouts.response_head); proxy-read-timeout, if set, replaces both"

// what names the controller and its ConfigMap.
func (m *migration) what() string {
	from := "ingress-nginx with its default flags"
	if m.controller != nil {
		from = fmt.Sprintf("the %s %s/%s", m.controller.Kind, m.controller.Namespace, m.controller.Name)
	}
	switch {
	case m.configMap != nil:
		from += " and the ConfigMap " + m.of.ConfigMap.String()
	case m.of.ConfigMap.Name != "":
		from += " (its ConfigMap " + m.of.ConfigMap.String() + " is not in the input)"
	}
	return controller.OneLine(from)
}

// kept names the objects that weir needs.
func (m *migration) kept() string {
	kept := "its IngressClass"
	if m.of.ConfigMap.Name != "" {
		kept += " and the ConfigMap " + m.of.ConfigMap.String() + ", which weir reads"
	}
	return controller.OneLine(kept)
}

// effects returns two lists of annotations, keys and flags, each with its object. Those in closed make weir answer 503. weir
// ignores those in different, and serves the requests in another way than ingress-nginx.
func (m *migration) effects() (closed, different []string) {
	settings, refused := controller.Read(m.of.Data), map[string]bool{}
	for _, r := range controller.Rate(m.of.Data) {
		refused[r.Name] = r.Refused
	}
	everywhere := func(name string) bool { // closed names the key once, for all Ingresses
		key, ok := annotation.KeyOf(name)
		return ok && (refused[key] || key == "configuration-snippet" && refused["location-snippet"])
	}
	for _, i := range m.ingresses {
		name, applied := "Ingress "+i.Namespace+"/"+i.Name+": ", settings.Apply(i)
		guards, others := annotation.Unsupported(applied)
		guards = slices.DeleteFunc(guards, everywhere)
		why := map[string]string{}
		for _, a := range annotation.Rate(applied) {
			why[a.Name] = a.Why
		}
		closed = append(closed, byReason(name, guards, why)...)
		different = append(different, byReason(name, others, why)...)
	}
	slices.Sort(closed)
	slices.Sort(different)
	for _, r := range slices.Concat(controller.Rate(m.of.Data), controller.RateFlags(m.of.Flags)) {
		switch {
		case r.Refused:
			closed = append(closed, fmt.Sprintf("all Ingresses, by %s: %s", r.Name, r.Why))
		case r.Trust || !r.IsUnsupported() || controller.InFile(r.Name):
		default:
			different = append(different, fmt.Sprintf("%s: %s", r.Name, r.Why))
		}
	}
	return closed, different
}

// byReason returns a line for each reason, with the annotations that have it.
func byReason(object string, names []string, why map[string]string) (lines []string) {
	for n, name := range names {
		if slices.ContainsFunc(names[:n], func(earlier string) bool { return why[earlier] == why[name] }) {
			continue
		}
		var same []string
		for _, other := range names[n:] {
			if why[other] == why[name] {
				same = append(same, other)
			}
		}
		lines = append(lines, object+strings.Join(same, ", ")+": "+why[name])
	}
	return lines
}

// wrong are the errors of the Ingresses, as weir lint finds them.
func (m *migration) wrong() (all []string) {
	found := wrongs(&kube.Manifests{Objects: kube.Objects{Ingresses: m.ingresses, Services: m.objects.Services, Secrets: m.objects.Secrets}})
	for key, messages := range found {
		for _, message := range messages {
			if strings.HasPrefix(message, "All paths of this Ingress answer 503") {
				continue // effects returns these
			}
			all = append(all, strings.Replace(key, "/", " ", 1)+": "+message)
		}
	}
	slices.Sort(all)
	return all
}

// defaultBackend is the Ingress for a default backend, in lines.
func (m *migration) defaultBackend(name config.ObjectName) []string {
	class := cmp.Or(m.of.Flags["ingress-class"], "nginx")
	if len(m.of.Classes) > 0 {
		class = m.of.Classes[0]
	}
	port, note := int32(80), []string{"and write its port in place of 80"}
	for _, s := range m.objects.Services {
		if s.Namespace == name.Namespace && s.Name == name.Name && len(s.Spec.Ports) > 0 {
			port, note = s.Spec.Ports[0].Port, nil // as ingress-nginx does
		}
	}
	return append([]string{fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: default-backend, namespace: %s}, spec: {ingressClassName: %s, defaultBackend: {service: {name: %s, port: {number: %d}}}}}", name.Namespace, class, name.Name, port)}, note...)
}
