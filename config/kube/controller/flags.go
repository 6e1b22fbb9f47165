package controller

import (
	"maps"
	"slices"
	"strings"

	"github.com/weirproxy/weir/config/kube/annotation"
)

// flags has every flag of ingress-nginx's controller.
var flags = map[string]*key{
	"ingress-class": replaced("kubernetes.class has the name"), "controller-class": replaced("kubernetes.controller has the name"), "ingress-class-by-name": needless("kubernetes.class names one class"),
	"watch-ingress-without-class": not("make the IngressClass the default of the cluster", "false"),
	"watch-namespace":             replaced("kubernetes.namespaces has the namespaces"), "watch-namespace-selector": replaced("kubernetes.namespace_labels has the labels"),
	"configmap": replaced("kubernetes.ingress_nginx has the ConfigMap"), "tcp-services-configmap": replaced("kubernetes.tcp has the ConfigMap"), "udp-services-configmap": not("weir does not support UDP; leave these ports where they are"),
	"default-ssl-certificate": replaced("kubernetes.default_certificate has the Secret"), "default-backend-service": replaced("kubernetes.ingress_nginx.default_backend has the Service for custom-http-errors; for requests that no Ingress matches, write an Ingress with spec.defaultBackend and no rules", ""),
	"publish-service": replaced("kubernetes.publish.service has the Service"), "publish-status-address": replaced("kubernetes.publish.addresses has the addresses"), "report-node-internal-ip-address": replaced("kubernetes.publish.nodes: internal does the same"),
	"update-status": needless("kubernetes.publish says whether weir writes statuses"), "update-status-on-shutdown": needless("kubernetes.publish.keep leaves the addresses"), "status-update-interval": needless("weir writes each change at once"),
	"annotations-prefix":     closing("weir reads only annotations with the prefix nginx.ingress.kubernetes.io, and does not see others, even if they restrict access; rename them first", "nginx.ingress.kubernetes.io"),
	"enable-ssl-passthrough": near("weir reads the annotation ssl-passthrough also without this flag", "true"), "ssl-passthrough-proxy-port": needless(internal),
	"disable-catch-all": needless("weir serves Ingresses without hosts, which get the requests that no other Ingress matches"), "disable-svc-external-name": not("weir serves Services of type ExternalName", "false"),
	"enable-annotation-validation": needless("weir parses each annotation by itself"), "deep-inspect": needless("weir makes no text of nginx from paths"), "disable-full-test": needless(internal),
	"enable-topology-aware-routing": near("weir follows spec.trafficDistribution, and kubernetes.prefer_local", "false"),
	"http-port":                     replaced("listeners have the addresses", "80"), "https-port": replaced("listeners have the addresses", "443"),
	"shutdown-grace-period": replaced("drain.lame_duck has the time", "0"), "post-shutdown-grace-period": needless("drain.timeout has the time"),
	"election-id": needless("kubernetes.lease has the Lease"), "election-ttl": needless("kubernetes.lease has the Lease"), "disable-leader-election": needless("replicas of weir elect one that writes"),
	"validating-webhook": needless("weir reports errors by events, and weir lint and weir check report them before"), "validating-webhook-certificate": needless("weir has no webhook"), "validating-webhook-key": needless("weir has no webhook"),
	"apiserver-host": needless("kubernetes.kubeconfig has the API server"), "certificate-authority": needless("kubernetes.kubeconfig has the API server"), "kubeconfig": needless("kubernetes.kubeconfig has the file"),
	"enable-metrics": needless("weir always has metrics, on its admin port"), "metrics-per-host": needless(ownMetrics), "metrics-per-undefined-host": needless(ownMetrics), "bucket-factor": needless(ownMetrics), "max-buckets": needless(ownMetrics), "length-buckets": needless(ownMetrics), "size-buckets": needless(ownMetrics), "time-buckets": needless(ownMetrics),
	"exclude-socket-metrics": needless(ownMetrics), "monitor-max-batch-size": needless(ownMetrics), "report-status-classes": needless(ownMetrics),
	"healthz-port": needless(ownHealth), "healthz-host": needless(ownHealth), "health-check-path": needless(ownHealth), "health-check-timeout": needless(ownHealth), "default-server-port": needless(internal), "status-port": needless(internal), "stream-port": needless(internal),
	"profiling": needless(ownAdmin), "profiler-port": needless(ownAdmin), "profiler-address": needless(ownAdmin),
	"enable-ssl-chain-completion": not("weir sends the certificates of the Secret, and looks for no others", "false"), "disable-sync-events": needless("weir writes events about errors"), "dynamic-configuration-retries": needless(internal), "internal-logger-address": needless(internal),
	"maxmind-edition-ids": needless(geo), "maxmind-license-key": needless(geo), "maxmind-mirror": needless(geo), "maxmind-retries-count": needless(geo), "maxmind-retries-timeout": needless(geo),
	"sync-period": needless(internal), "sync-rate-limit": needless(internal), "v": needless(errorLog), "alsologtostderr": needless(errorLog), "logtostderr": needless(errorLog), "version": needless(internal),
}

// Reasons of several flags.
const (
	ownMetrics = "weir has metrics of its own"
	ownHealth  = "the health port of weir is configured by health"
	ownAdmin   = "the admin port of weir has profiles"
)

// replaced is a flag that weir's configuration replaces.
func replaced(why string, exact ...string) *key {
	return &key{rating: annotation.Near, why: why, exact: exact}
}

// Flags reads the arguments of the controller: --name=value, --name value, or --name.
func Flags(args []string) map[string]string {
	all := map[string]string{}
	for n := 0; n < len(args); n++ {
		name := strings.TrimLeft(args[n], "-")
		if name == args[n] || name == "" {
			continue // the program
		}
		name, value, given := strings.Cut(name, "=")
		if !given && n+1 < len(args) && !strings.HasPrefix(args[n+1], "-") {
			n++
			value, given = args[n], true
		}
		if !given {
			value = "true"
		}
		all[name] = value
	}
	return all
}

// RateFlags rates flags of the controller, in alphabetical order.
func RateFlags(all map[string]string) (rated []Rated) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := Rated{Name: "--" + name, Value: all[name]}
		k, known := flags[name]
		switch {
		case !known:
			r.Rating, r.Why = annotation.No, "ingress-nginx 1.15 does not know this flag; check its spelling, or remove it"
		case slices.Contains(k.exact, r.Value):
			r.Rating = annotation.Exact
		default:
			r.Rating, r.Why = k.rating, k.why
		}
		rated = append(rated, r)
	}
	return rated
}

// IsController reports whether a container runs ingress-nginx's controller.
func IsController(image string, command []string) bool {
	if len(command) > 0 && strings.HasSuffix(command[0], "nginx-ingress-controller") {
		return true
	}
	return strings.Contains(image, "ingress-nginx/controller") || strings.Contains(image, "nginx-ingress-controller")
}

// IsConfigMap reports whether a ConfigMap of this name and content looks like the controller's: files of manifests
// often have no Deployment that names it.
func IsConfigMap(name string, data map[string]string) bool {
	named := strings.Contains(name, "nginx") || strings.Contains(name, "ingress") || strings.Contains(name, "controller")
	if !named || strings.Contains(name, "-services") {
		return false
	}
	for key := range data {
		if keys[key] != nil {
			return true
		}
	}
	return false
}
