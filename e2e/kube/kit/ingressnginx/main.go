// Ingress-nginx-conf prints what ingress-nginx's own code makes of the objects of a cluster: nginx.conf, and
// the files that it names. Tests run nginx with it, and compare nginx with weir.
//
//	ingress-nginx-conf KUBECONFIG NAMESPACE CLASS CONFIGMAP SERVICE FOLDER
//
// CLASS is the name of the IngressClass, CONFIGMAP the controller's ConfigMap in the namespace, and SERVICE the
// controller's default backend in the namespace; - is none. The program writes into FOLDER, from which nginx
// runs.
//
// The module of ingress-nginx has internal packages, so the path of this module begins with its path. The
// script build copies ingress-nginx, and adds the function Configuration of controller.go.txt to it.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"k8s.io/ingress-nginx/internal/ingress/annotations/parser"
	"k8s.io/ingress-nginx/internal/ingress/controller"
	"k8s.io/ingress-nginx/internal/ingress/controller/config"
	"k8s.io/ingress-nginx/internal/ingress/controller/ingressclass"
	"k8s.io/ingress-nginx/internal/ingress/metric"
	"k8s.io/ingress-nginx/internal/k8s"
	"k8s.io/ingress-nginx/internal/net/ssl"
	"k8s.io/ingress-nginx/internal/nginx"
	"k8s.io/ingress-nginx/pkg/apis/ingress"
)

func main() {
	if len(os.Args) != 7 {
		fmt.Fprintln(os.Stderr, "usage: ingress-nginx-conf KUBECONFIG NAMESPACE CLASS CONFIGMAP SERVICE FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]); err != nil {
		fmt.Fprintln(os.Stderr, "ingress-nginx-conf:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, namespace, class, configMap, service, folder string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return err
	}
	files := filepath.Join(filepath.Dir(self), "ingress-nginx-files")
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	ingresses, err := client.NetworkingV1().Ingresses(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err
	}
	wanted := 0
	for _, i := range ingresses.Items {
		if i.Spec.IngressClassName != nil && *i.Spec.IngressClassName == class {
			wanted++
		}
	}
	// The build made the paths of ingress-nginx relative.
	if err := os.Chdir(folder); err != nil {
		return err
	}
	for _, dir := range []string{"ingress-controller/auth", "ingress-controller/ssl", "ingress-controller/geoip", "temporary"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	nginx.TemplatePath = filepath.Join(files, "nginx.tmpl")
	nginx.PID = filepath.Join(folder, "nginx.pid")
	parser.EnableAnnotationValidation = true
	k8s.IngressPodDetails = &k8s.PodInfo{}
	k8s.IngressNodeDetails = &k8s.NodeInfo{}
	c := &controller.Configuration{
		Client: client, Namespace: namespace,
		ListenPorts:               &config.ListenPorts{HTTP: 80, HTTPS: 443, Health: 10254, Default: 8181, SSLProxy: 442},
		IngressClassConfiguration: &ingressclass.Configuration{Controller: ingressclass.DefaultControllerName, AnnotationValue: class},
		DisableSyncEvents:         true,
		DisableLeaderElection:     true,
		SyncRateLimit:             1,
		MaxmindEditionFiles:       &[]string{},
		GlobalExternalAuth:        &config.GlobalExternalAuth{},
		FakeCertificate:           ssl.GetFakeSSLCert(),
	}
	if configMap != "-" {
		c.ConfigMapName = namespace + "/" + configMap
	}
	if service != "-" {
		c.DefaultService = namespace + "/" + service
	}
	text, made, err := controller.NewNGINXController(c, metric.NewDummyCollector()).Configuration(wanted, 3*time.Second)
	if err != nil {
		return err
	}
	if err := os.WriteFile("peers.lua", peers(made), 0o644); err != nil {
		return err
	}
	return os.WriteFile("nginx.conf", adapt(text, files, folder), 0o644)
}

// peers are the tables of the fixed upstreams and of the hosts with a certificate, for the files in lua.
func peers(c *ingress.Configuration) []byte {
	var out strings.Builder
	out.WriteString("local _M = { backends = {}, certificates = {} }\n")
	for _, b := range c.Backends {
		fmt.Fprintf(&out, "_M.backends[%q] = {", b.Name)
		for _, e := range b.Endpoints {
			fmt.Fprintf(&out, " { %q, %s },", e.Address, e.Port)
		}
		out.WriteString(" }\n")
	}
	for _, s := range c.Servers {
		if s.SSLCert == nil || s.Hostname == "_" {
			continue
		}
		for _, name := range append([]string{s.Hostname}, s.Aliases...) {
			fmt.Fprintf(&out, "_M.certificates[%q] = true\n", name)
		}
	}
	out.WriteString("return _M\n")
	return []byte(out.String())
}

// modules are the modules of Debian that the configuration needs. ingress-nginx's nginx has them built in.
const modules = `user root;
load_module /usr/lib/nginx/modules/ndk_http_module.so;
load_module /usr/lib/nginx/modules/ngx_http_lua_module.so;
load_module /usr/lib/nginx/modules/ngx_http_headers_more_filter_module.so;
load_module /usr/lib/nginx/modules/ngx_http_set_misc_module.so;
`

var (
	stream = regexp.MustCompile(`(?ms)^stream \{.*`)
	http2  = regexp.MustCompile(`(?m)^(\s*listen [^;]* ssl);`)
)

// adapt changes what depends on the machine: paths, modules, and directives that Debian's nginx spells
// differently. It drops the section for TCP and UDP.
func adapt(text []byte, files, folder string) []byte {
	s := stream.ReplaceAllString(string(text), "")
	s = strings.NewReplacer(
		"/etc/nginx/lua", filepath.Join(files, "lua"),
		`lua_package_path "/etc/nginx/lua/?.lua;;"`, fmt.Sprintf(`lua_package_path "%[1]s/?.lua;%[2]s/lua/?.lua;;"`, folder, files),
		"/tmp/nginx/", filepath.Join(folder, "temporary")+"/",
		"/var/log/nginx/", folder+"/",
	).Replace(s)
	s = http2.ReplaceAllString(strings.ReplaceAll(s, "http2 on;", ""), "$1 http2;")
	return []byte(modules + s)
}
