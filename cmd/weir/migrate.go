package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/event"
)

// migration is a move from one ingress-nginx to weir.
type migration struct {
	objects    *kube.Manifests
	controller *kube.Controller  // nil: the input has no Deployment or DaemonSet of it
	configMap  *corev1.ConfigMap // nil: none
	of         controller.Installation
	ingresses  []*networkingv1.Ingress // of its classes
	tcp        *corev1.ConfigMap       // for raw TCP; nil: none
}

func newMigrateCommand() *cobra.Command {
	var source linting
	var which, asGateway string
	var gateway config.ObjectName
	c := &cobra.Command{
		Use:   "migrate FILE|- ...",
		Short: "Print how to move from ingress-nginx to weir",
		Long: `Migrate reads Kubernetes manifests from files, standard input or a cluster. It
prints the configuration of weir that replaces the flags and the ConfigMap of
ingress-nginx's controller, and before it, as comments, what to change and in
which order. It changes nothing.

With --gateway-api it prints the Ingresses as objects of the Gateway API instead, with
their rewrites, redirects, CORS, timeouts, changes of HTTP headers and canaries.
Ingresses that ask for anything for which the Gateway API has nothing equal stay
Ingresses, and so do all others of their hosts; comments say why. weir serves both
kinds side by side.

If it cannot read all of the input, it prints nothing.

Without a Deployment or DaemonSet of the controller, migrate takes a ConfigMap
that looks like the controller's, and the default flags.`,
		Example: `  weir migrate --cluster > weir.yaml
  helm template ingress-nginx/ingress-nginx | weir migrate -
  weir migrate --cluster --gateway-api infra/edge > gateway.yaml`,
		SuggestFor:            []string{"convert", "import", "adapt"},
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) (err error) {
			if asGateway != "" { // first: without its value, a file takes that place
				if gateway, err = gatewayName(asGateway); err != nil {
					return err
				}
			}
			return source.args(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			m, err := source.read(c, args)
			if err != nil { // an object that could not be read may restrict access
				return err
			}
			if len(m.Ingresses)+len(m.Old)+len(m.Classes)+len(m.ConfigMaps)+len(m.Controllers) == 0 {
				return errors.New("the input has nothing to migrate: no Ingress, IngressClass, ConfigMap or controller of ingress-nginx")
			}
			if asGateway != "" {
				return printAsGateway(c.OutOrStdout(), m, gateway)
			}
			move, err := newMigration(m, which)
			if err != nil {
				return err
			}
			return move.print(c.OutOrStdout())
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
	move.findPorts()
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

// findPorts finds the ConfigMap for raw TCP. Without a controller it is one with the usual name.
func (m *migration) findPorts() {
	const flag = "tcp-services-configmap"
	if o := tcpServices(m.objects); o != nil && m.controller == nil {
		m.of.Flags = map[string]string{flag: o.Namespace + "/" + o.Name}
	}
	for _, o := range m.objects.ConfigMaps {
		if o.Namespace+"/"+o.Name == m.of.Flags[flag] {
			m.tcp, m.of.TCP = o, o.Data
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
func (m *migration) print(out io.Writer) error {
	losers, err := m.losers()
	if err != nil {
		return err
	}
	m.of.SharesHosts = len(losers) > 0
	text, changes := m.of.File()
	cfg, r, err := m.convert(config.SharedHosts)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "# The configuration of weir in place of %s, made by weir migrate.\n", m.what())
	fmt.Fprintln(out, "# In the chart, the keys belong below config:, without the addresses of the listeners.")
	fmt.Fprintln(out, "#")
	fmt.Fprintln(out, "# What to do, in this order:")
	closed, different, wrong := m.effects(r)
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
	step("With the chart, write these values beside config:", m.values(cfg, r))
	if len(losers) > 0 {
		step("Keep host_ownership: shared, or change these Ingresses. With namespace, the chart's default, they lose a host:", losers)
	}
	if len(closed) > 0 {
		step("Change these Ingresses, keys and flags. weir answers 503 for them:", closed)
	}
	if len(different) > 0 {
		step("Check these. weir serves them, but ignores the annotation, the key or the flag:", different)
	}
	if len(wrong) > 0 {
		step("Correct what weir cannot serve:", wrong)
	}
	if service, ok := m.of.DefaultBackend(); ok {
		step("Create an Ingress for the default backend (--default-backend-service):", m.defaultBackend(service))
	}
	step("Run weir beside ingress-nginx with this file (publish: none), and test it at its own address.", []string{streams})
	step("Move the load balancer or DNS to weir, and replace publish: none.", nil)
	step("Remove ingress-nginx, but keep "+m.kept()+".", nil)
	_, err = fmt.Fprintf(out, "\n%s", text)
	return err
}

// convert converts the Ingresses by the configuration that replaces ingress-nginx's.
func (m *migration) convert(owned config.HostOwnership) (*config.Config, *kube.Routing, error) {
	text, _ := m.of.File()
	cfg, err := file.Parse("the configuration", []byte(text), os.LookupEnv)
	if err != nil {
		return nil, nil, fmt.Errorf("a flag or a key of ingress-nginx has a value that weir cannot use: %w", err)
	}
	k := *cfg.Kubernetes
	k.Class, k.Namespaces, k.NamespaceLabels, k.HostOwnership = "migrated", nil, nil, owned
	converted := *cfg
	converted.Kubernetes = &k
	objects := kube.Objects{Services: m.objects.Services, Secrets: m.objects.Secrets, Controller: m.configMap, TCP: m.tcp}
	for _, all := range byClass(m.ingresses, k.Class) {
		objects.Ingresses = append(objects.Ingresses, all...)
	}
	m.objects.UseMaps()
	objects.Maps = m.objects.Maps
	converter := kube.Converter{File: &converted, Offline: true}
	return cfg, converter.Convert(&objects), nil
}

// losers are the Ingresses that lose a host if each host belongs to one namespace.
func (m *migration) losers() (all []string, err error) {
	_, shared, err := m.convert(config.SharedHosts)
	if err != nil {
		return nil, err
	}
	_, owned, err := m.convert(config.OwnedByNamespace)
	if err != nil {
		return nil, err
	}
	for _, e := range owned.Events {
		if e.Reason == event.ReasonHostTaken && !slices.Contains(shared.Events, e) {
			all = append(all, fmt.Sprintf("Ingress %s/%s: %s", e.Object.Namespace, e.Object.Name, e.Message))
		}
	}
	return all, nil
}

// values are the values of the chart beside the configuration.
func (m *migration) values(cfg *config.Config, r *kube.Routing) []string {
	duck, ready := cfg.Drain.LameDuck, 7 // checks of readiness, every 5 seconds
	all := []string{"ingressClass: {create: false}",
		fmt.Sprintf("terminationGracePeriodSeconds: %d, which is drain.lame_duck (%v), drain.timeout (%v) and 10 seconds; without the chart, give the Pods as much", int((duck+cfg.Drain.Timeout).Seconds())+10, duck, cfg.Drain.Timeout)}
	if least := int(duck/(5*time.Second)) + 1; least > ready {
		all = append(all, fmt.Sprintf("readinessFailures: %d, so that the Pods count as ready for drain.lame_duck", least))
	}
	name := m.of.Flags["tcp-services-configmap"]
	if name == "" {
		return all
	}
	all = append(all, "tcpServices: "+name)
	var ports []string
	for i := range r.Listeners {
		_, port, _ := net.SplitHostPort(r.Listeners[i].Address)
		ports = append(ports, fmt.Sprintf("{name: tcp-%s, port: %s}", port, port))
	}
	switch {
	case len(ports) > 0:
		all = append(all, "service: {tcp: ["+strings.Join(ports, ", ")+"]}; without the chart, add these ports to weir's Service")
	case m.tcp == nil:
		all = append(all, "service: {tcp: [{name: NAME, port: PORT}]} with each port of the ConfigMap "+name+", which is not in the input")
	}
	return all
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

// effects returns lists of annotations, keys and flags, each with its object. Those in closed make weir answer 503. weir
// ignores those in different, and serves the requests in another way than ingress-nginx. wrong has other errors. An Ingress
// in different is in no other list. r is the result of the Ingresses.
func (m *migration) effects(r *kube.Routing) (closed, different, wrong []string) {
	for _, s := range slices.Concat(controller.Rate(m.of.Data), controller.RateFlags(m.of.Flags)) {
		switch {
		case s.Refused:
			closed = append(closed, fmt.Sprintf("all Ingresses, by %s: %s", s.Name, reasonOr(s.Why)))
		case s.Trust || !s.IsUnsupported() || controller.InFile(s.Name):
		default:
			different = append(different, fmt.Sprintf("%s: %s", s.Name, reasonOr(s.Why)))
		}
	}
	why := closures(r)
	all, settings, faults := len(closed) > 0, controller.Read(m.of.Data), faultsOf(r, why)
	slices.SortFunc(m.ingresses, func(a, b *networkingv1.Ingress) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	var shut, served []string
	for _, i := range m.ingresses {
		name := i.Namespace + "/" + i.Name
		key := "Ingress " + name
		guards, ignored := m.rated(settings.Apply(i))
		if len(guards) == 0 && !all && why[name] != "" {
			guards = []string{why[name]}
		}
		shut = append(shut, after(key+": ", guards)...)
		wrong = append(wrong, after(key+": ", faults[key])...)
		switch {
		case all || len(guards) > 0:
			shut = append(shut, after(key+": weir also ignores ", ignored)...)
		case len(faults[key]) > 0:
			wrong = append(wrong, after(key+": weir also ignores ", ignored)...)
		default:
			served = append(served, after(key+": ", ignored)...)
		}
		delete(faults, key)
	}
	for _, i := range m.objects.Old {
		wrong = append(wrong, fmt.Sprintf("Ingress %s/%s: %s", i.Namespace, i.Name, removedVersion(i)))
	}
	for _, key := range slices.Sorted(maps.Keys(faults)) {
		wrong = append(wrong, after(key+": ", faults[key])...)
	}
	return append(shut, closed...), append(served, different...), wrong
}

// after returns the lines with a text before each.
func after(text string, lines []string) (all []string) {
	for _, line := range lines {
		all = append(all, text+line)
	}
	return all
}

// reasonOr is the reason, or a general one.
func reasonOr(why string) string { return cmp.Or(why, "weir does not support it") }

// closures returns why weir closes paths of Ingresses because of annotations, by the names of the Ingresses.
func closures(r *kube.Routing) map[string]string {
	why := map[string]string{}
	for _, route := range r.Routes {
		if c := route.Closure; c != nil && c.Reason == "closed_by_annotation" {
			why[route.Namespace+"/"+route.Ingress] = reasonOr(c.Why)
		}
	}
	return why
}

// rated returns the annotations of an Ingress because of which weir answers 503, and those that weir ignores, with their
// reasons. A key of the ConfigMap that closes all Ingresses is not among them.
func (m *migration) rated(i *networkingv1.Ingress) (guards, ignored []string) {
	why, refused := map[string]string{}, map[string]bool{}
	for _, r := range controller.Rate(m.of.Data) {
		refused[r.Name], why[annotation.FromConfigMap(r.Name)] = r.Refused, r.Why
	}
	for _, a := range annotation.Rate(i) {
		why[a.Name] = a.Why
		why[annotation.FromConfigMap(a.Name)] = a.Why
	}
	names, others := annotation.Unsupported(i)
	names = slices.DeleteFunc(names, func(name string) bool {
		key, ok := annotation.KeyOf(name)
		return ok && (refused[key] || key == "configuration-snippet" && refused["location-snippet"])
	})
	return byReason(names, why), byReason(others, why)
}

// byReason returns a line for each reason, with the annotations that have it.
func byReason(names []string, why map[string]string) (lines []string) {
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
		lines = append(lines, strings.Join(same, ", ")+": "+reasonOr(why[name]))
	}
	return lines
}

// faultsOf returns the errors of objects, by their kinds and names, as weir lint finds them. It leaves out those of Ingresses
// that say why weir closes them, as shut does.
func faultsOf(r *kube.Routing, shut map[string]string) map[string][]string {
	all := map[string][]string{}
	for _, e := range r.Events {
		closes := e.Reason == event.ReasonAccess && (strings.HasPrefix(e.Message, "All paths of this Ingress answer 503") || shut[nameOf(e)] != "")
		if isFaulty(e) && !closes {
			key := e.Object.Kind + " " + nameOf(e)
			all[key] = append(all[key], e.Message)
		}
	}
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
