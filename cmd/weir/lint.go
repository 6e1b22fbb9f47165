package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/event"
	"github.com/weirproxy/weir/config/kube/gateway"
	"github.com/weirproxy/weir/config/kube/lint"
)

// linting has the arguments and flags of the command.
type linting struct {
	cluster    bool
	kubeconfig string
	strict     bool
	json       bool
}

func newLintCommand() *cobra.Command {
	var l linting
	c := &cobra.Command{
		Use:   "lint FILE|- ...",
		Short: "Check which annotations of ingress-nginx and Traefik weir supports",
		Long: `Lint reads Kubernetes manifests from files, standard input or a cluster, and
rates each annotation of ingress-nginx and Traefik, and the keys and flags of
ingress-nginx's ConfigMap and Deployment:

  exact  weir does the same,
  near   weir does something similar, and how it differs,
  no     weir does not support it (yet), and what to do instead.

If an unsupported annotation restricts access, or may, weir answers 503 for the
Ingress. Parts of an Ingress that weir cannot serve are "wrong". Lint does not
report missing Services and Secrets, because manifests are rarely complete.

From files it also reads objects of the Gateway API. They are "wrong" where their
status would report an error.

The exit status is 0 if everything is "exact" or "near"; 1 if anything is "no" or
"wrong" (with --strict also "near"), or cannot be read; and 2 if the command line
is invalid. Lint reports everything that it can read.`,
		Example: `  weir lint deploy/*.yaml
  helm template chart | weir lint -
  weir lint --cluster --output json`,
		DisableFlagsInUseLine: true,
		Args:                  l.args,
		RunE:                  func(c *cobra.Command, args []string) error { return l.run(c, args) },
	}
	l.sourceFlags(c)
	c.Flags().BoolVar(&l.strict, "strict", false, "end with status 1 also if something is near")
	output := "text"
	c.Flags().StringVarP(&output, "output", "o", output, "`FORMAT`: text or json")
	completeValues(c, "output", "text", "json")
	c.PreRunE = func(*cobra.Command, []string) error {
		l.json = output == "json"
		if !l.json && output != "text" {
			return fmt.Errorf("--output is %q; write text or json", output)
		}
		return nil
	}
	return c
}

// args checks that there is one source of objects.
func (l *linting) args(_ *cobra.Command, args []string) error {
	switch {
	case l.cluster && len(args) > 0:
		return errors.New("--cluster reads the cluster instead of files; remove the files or --cluster")
	case !l.cluster && len(args) == 0:
		return errors.New("no input; write file names, - for standard input, or --cluster")
	}
	return nil
}

// sourceFlags are the flags that select the cluster.
func (l *linting) sourceFlags(c *cobra.Command) {
	c.Flags().BoolVar(&l.cluster, "cluster", false, "read the Ingresses and Services of a cluster, the Deployment and the ConfigMap of ingress-nginx, and the ConfigMaps that annotations name")
	c.Flags().StringVar(&l.kubeconfig, "kubeconfig", ownKubeconfig(), "with --cluster, the kubeconfig `FILE`; the default is KUBECONFIG or ~/.kube/config, and in a Pod its service account")
}

// ownKubeconfig returns the file that kubectl would use; empty: there is none, or weir
// runs in a Pod.
func ownKubeconfig() string {
	files := filepath.SplitList(os.Getenv("KUBECONFIG"))
	if home, err := os.UserHomeDir(); err == nil && len(files) == 0 && !kube.InPod() {
		files = []string{filepath.Join(home, ".kube", "config")}
	}
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return ""
}

// report contains everything that lint reports about one object.
type report struct {
	Kind      string         `json:"kind"`
	Namespace string         `json:"namespace"`
	Name      string         `json:"name"`
	Findings  []lint.Finding `json:"findings,omitempty"`
	Wrong     []string       `json:"wrong,omitempty"`
}

func (l *linting) run(c *cobra.Command, args []string) error {
	m, unreadable := l.read(c, args)
	if m == nil {
		return unreadable
	}
	reports := lintAll(m)
	var err error
	if l.json {
		err = json.NewEncoder(c.OutOrStdout()).Encode(reports)
	} else {
		printRead(c.OutOrStdout(), m)
		printReports(c.OutOrStdout(), reports)
	}
	if err != nil {
		return err
	}
	if bad := l.bad(reports); bad > 0 {
		err = fmt.Errorf("%s that weir does not support as written", count(bad, "finding"))
	}
	return errors.Join(unreadable, err)
}

// read reads all readable sources; the error is about the others. If it could read
// nothing, it returns nil.
func (l *linting) read(c *cobra.Command, args []string) (*kube.Manifests, error) {
	if l.cluster {
		client, err := kube.Connect(&config.Kubernetes{Kubeconfig: l.kubeconfig})
		if err != nil {
			if l.kubeconfig != "" || kube.InPod() {
				return nil, fmt.Errorf("%w; --kubeconfig names another one", err)
			}
			return nil, errors.New("no kubeconfig: neither KUBECONFIG nor ~/.kube/config names a file that exists; name one with --kubeconfig")
		}
		m, err := client.Snapshot(context.Background())
		if err == nil {
			client.ReadMaps(context.Background(), m, m.NamedMaps(controllerSettings(m)))
		}
		return m, err
	}
	m := &kube.Manifests{}
	var wrong []error
	for _, name := range args {
		if err := readManifests(m, name, c.InOrStdin()); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
		}
	}
	return m, errors.Join(wrong...)
}

func readManifests(m *kube.Manifests, name string, in io.Reader) error {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		in = f
	}
	return m.Read(in)
}

// lintAll reports on objects with annotations, and on objects with errors.
func lintAll(m *kube.Manifests) (reports []report) {
	wrong := wrongs(m)
	add := func(kind string, o metav1.Object) {
		key := kind + "/" + o.GetNamespace() + "/" + o.GetName()
		r := report{kind, o.GetNamespace(), o.GetName(), lint.Object(o), wrong[key]}
		if len(r.Findings)+len(r.Wrong) > 0 {
			reports = append(reports, r)
		}
	}
	of := controllerSettings(m)
	for _, i := range m.Ingresses {
		add("Ingress", of.Keyed(i))
	}
	for _, c := range m.Classes {
		if c.Spec.Parameters != nil {
			reports = append(reports, report{"IngressClass", "", c.Name, nil, []string{"weir does not read the parameters of a class, so they have no effect. Remove spec.parameters."}})
		}
	}
	for _, i := range m.Old {
		reports = append(reports, report{"Ingress", i.Namespace, i.Name, lint.Object(i),
			[]string{removedVersion(i)}})
	}
	for _, o := range m.Unread {
		if r := lintUnread(o, wrong); r != nil {
			reports = append(reports, *r)
		}
	}
	for _, s := range m.Services {
		add("Service", s)
	}
	named := controllerMaps(m)
	for _, o := range m.ConfigMaps {
		if isOfController(named, o) {
			reports = append(reports, report{"ConfigMap", o.Namespace, o.Name, settings(controller.Rate(o.Data)), wrong["ConfigMap/"+o.Namespace+"/"+o.Name]})
		} else {
			add("ConfigMap", o)
		}
	}
	for _, c := range m.Controllers {
		reports = append(reports, report{c.Kind, c.Namespace, c.Name, settings(controller.RateFlags(c.Flags)), nil})
	}
	slices.SortStableFunc(reports, func(a, b report) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return reports
}

// removedVersion is the error of an Ingress that no API server supports any more.
func removedVersion(i *networkingv1.Ingress) string {
	return fmt.Sprintf("Its API version is %s, which Kubernetes removed in 1.22; write networking.k8s.io/v1, and run the command again to check its rules.", i.APIVersion)
}

// settings are the ratings of keys or flags of ingress-nginx's controller.
func settings(rated []controller.Rated) (all []lint.Finding) {
	for _, r := range rated {
		all = append(all, lint.Finding{Annotation: r.Name, Value: r.Value, Rating: r.Rating, Refused: r.Refused, Why: r.Why})
	}
	return all
}

// controllerMaps are the ConfigMaps that ingress-nginx's controllers name.
func controllerMaps(m *kube.Manifests) map[config.ObjectName]bool {
	named := map[config.ObjectName]bool{}
	for _, c := range m.Controllers {
		if name, ok := c.ConfigMap("configmap"); ok {
			named[name] = true
		}
	}
	return named
}

// isOfController reports whether a ConfigMap belongs to a controller. named has the names from the flags of
// the controllers.
func isOfController(named map[config.ObjectName]bool, o *corev1.ConfigMap) bool {
	return named[config.ObjectName{Namespace: o.Namespace, Name: o.Name}] || controller.IsConfigMap(o.Name, o.Data)
}

// controllerMap returns the ConfigMap of the controller; nil: the manifests have none or several.
func controllerMap(m *kube.Manifests) *corev1.ConfigMap {
	named := controllerMaps(m)
	var found []*corev1.ConfigMap
	for _, o := range m.ConfigMaps {
		if isOfController(named, o) {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		return nil
	}
	return found[0]
}

// controllerSettings returns the settings in the ConfigMap and the flags of the controller, or else the defaults.
func controllerSettings(m *kube.Manifests) *controller.Settings {
	var data map[string]string
	if o := controllerMap(m); o != nil {
		data = o.Data
	}
	settings := controller.Read(data)
	if len(m.Controllers) != 1 {
		return settings
	}
	of := controller.Installation{Flags: m.Controllers[0].Flags}
	if name, ok := of.DefaultBackend(); ok {
		settings = settings.WithDefaultBackend(name.String())
	}
	return settings
}

// lintConfig is the configuration for converting the manifests: weir serves nothing else.
const lintConfig = `
listeners:
  web: {address: ":80", protocol: http}
  websecure: {address: ":443", protocol: tls}
kubernetes: {class: weir, tcp: {config_map: ingress-nginx/tcp-services, proxy_protocol: lb}}
proxy_protocol: {lb: {rules: [{from: [10.0.0.0/8], header: require}]}}
`

// wrongs converts the manifests as if all Ingresses were weir's, and returns the errors
// by object. It converts the Ingresses of each class separately: no controller serves two
// classes, and both may have the same hosts.
func wrongs(m *kube.Manifests) map[string][]string {
	cfg, err := file.Parse("lint", []byte(lintConfig), os.LookupEnv)
	if err != nil { // a test loads lintConfig
		panic(err)
	}
	all := map[string][]string{}
	add := func(o corev1.ObjectReference, message string) {
		key := o.Kind + "/" + o.Namespace + "/" + o.Name
		if !slices.Contains(all[key], message) { // a Service may belong to several classes
			all[key] = append(all[key], message)
		}
	}
	converter := kube.Converter{File: cfg}
	m.UseMaps()
	if o := controllerMap(m); o != nil {
		cfg.Kubernetes.IngressNginx = &config.IngressNginx{ConfigMap: config.ObjectName{Namespace: o.Namespace, Name: o.Name}}
		m.Controller = o
	}
	for _, ingresses := range byClass(m.Ingresses, cfg.Kubernetes.Class) {
		objects := m.Objects
		objects.Classes, objects.Ingresses = nil, ingresses
		if len(ingresses) == 0 {
			objects.TCP = tcpServices(m)
		}
		for _, e := range converter.Convert(&objects).Events {
			if isFaulty(e) {
				add(e.Object, e.Message)
			}
		}
	}
	gatewayWrongs(m, func(k gateway.Key, message string) {
		add(corev1.ObjectReference{Kind: k.Kind, Namespace: k.Namespace, Name: k.ObjectName.Name}, message)
	})
	kube.EachUnknownAnnotation(m, func(kind string, o metav1.Object, message string) {
		add(corev1.ObjectReference{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, message)
	})
	for _, messages := range all {
		slices.Sort(messages)
	}
	for _, o := range m.ConfigMaps {
		if strings.Contains(o.Name, "udp-services") && len(o.Data) > 0 {
			add(corev1.ObjectReference{Kind: "ConfigMap", Namespace: o.Namespace, Name: o.Name}, "weir does not support UDP; leave these ports where they are.")
		}
	}
	return all
}

// isFaulty reports whether an event is about an error of manifests, which are rarely complete. Ratings of annotations and
// keys have others.
func isFaulty(e event.Event) bool {
	missing := e.Reason == event.ReasonBackend || e.Reason == event.ReasonCertificate
	rated := e.Rated || e.Reason == event.ReasonSetting || e.Reason == event.ReasonAnnotation && e.Object.Kind == "Ingress"
	return !missing && !rated && !e.Unread
}

// classAnnotation is older than spec.ingressClassName.
const classAnnotation = "kubernetes.io/ingress.class"

// classOf is the class of an Ingress; empty: it has none.
func classOf(i *networkingv1.Ingress) string {
	class := i.Annotations[classAnnotation]
	if i.Spec.IngressClassName != nil {
		class = cmp.Or(class, *i.Spec.IngressClassName)
	}
	return class
}

// byClass groups Ingresses by their class, and gives them another class. One list is
// empty; the objects without a class are converted with it.
func byClass(ingresses []*networkingv1.Ingress, class string) map[string][]*networkingv1.Ingress {
	all := map[string][]*networkingv1.Ingress{"\x00": nil}
	for _, i := range ingresses {
		i = i.DeepCopy()
		own := classOf(i)
		delete(i.Annotations, classAnnotation)
		i.Spec.IngressClassName = &class
		all[own] = append(all[own], i)
	}
	return all
}

// tcpServices returns the ConfigMap for raw TCP; it looks for the usual name.
func tcpServices(m *kube.Manifests) (found *corev1.ConfigMap) {
	for _, o := range m.ConfigMaps {
		if strings.Contains(o.Name, "tcp-services") {
			found = o
		}
	}
	return found
}

// printRead prints how much was read: without it, a correct Ingress and an empty file give
// the same output.
func printRead(out io.Writer, m *kube.Manifests) {
	ingresses := len(m.Ingresses) + len(m.Old)
	if ingresses+len(m.Services)+len(m.Unread)+len(m.ConfigMaps)+len(m.Classes) == 0 {
		fmt.Fprintln(out, "nothing to check: the input has no Ingress, IngressClass, Service, ConfigMap, or object of the Gateway API")
		return
	}
	more := ""
	if g := m.Gateway; g != nil {
		more = fmt.Sprintf(", Gateways %d, ListenerSets %d, routes %d", len(g.Gateways), len(g.Sets), len(g.HTTP)+len(g.GRPC)+len(g.TLS)+len(g.TCP))
	}
	fmt.Fprintf(out, "read: Ingresses %d, Services %d%s\n", ingresses, len(m.Services), more)
}

func printReports(out io.Writer, reports []report) {
	counts := map[annotation.Rating]int{}
	wrong := 0
	for _, r := range reports {
		fmt.Fprintf(out, "%s %s\n", r.Kind, objectName(r))
		for _, f := range r.Findings {
			counts[f.Rating]++
			why := ""
			if f.Why != "" {
				why = "\n         " + f.Why
			}
			fmt.Fprintf(out, "  %-5s  %s: %s%s\n", f.Rating, f.Annotation, shortValue(f.Value), why)
		}
		for _, w := range r.Wrong {
			wrong++
			fmt.Fprintf(out, "  wrong  %s\n", w)
		}
	}
	fmt.Fprintf(out, "%d exact, %d near, %d no, %d wrong\n", counts[annotation.Exact], counts[annotation.Near], counts[annotation.No], wrong)
}

func objectName(r report) string {
	return cmp.Or(r.Namespace, corev1.NamespaceDefault) + "/" + r.Name
}

// shortValue keeps a value on one line: snippets have several lines.
func shortValue(s string) string {
	first, _, more := strings.Cut(s, "\n")
	if more || len(first) > 80 {
		return fmt.Sprintf("%.80q...", first)
	}
	return fmt.Sprintf("%q", first)
}

// bad counts the errors for which the command fails, for use in pipelines.
func (l *linting) bad(reports []report) (n int) {
	for _, r := range reports {
		n += len(r.Wrong)
		for _, f := range r.Findings {
			if f.Rating == annotation.No || l.strict && f.Rating == annotation.Near {
				n++
			}
		}
	}
	return n
}
