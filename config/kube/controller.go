package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/event"
)

// readController returns what the ConfigMap of ingress-nginx sets. The file names it; it may be nil.
func readController(file *config.Config, m *corev1.ConfigMap) *controller.Settings {
	var data map[string]string
	if m != nil {
		data = m.Data
	}
	given := file.Kubernetes.Timeouts
	settings := controller.Read(data).Without(map[string]bool{
		"proxy-connect-timeout": given.Connect != 0, "proxy-read-timeout": given.Read != 0, "proxy-send-timeout": given.Send != 0})
	if service := file.Kubernetes.IngressNginx.DefaultBackend; service.Name != "" {
		settings = settings.WithDefaultBackend(service.String())
	}
	return settings
}

// applyController gives a route what the ConfigMap sets for all routes of Ingresses.
func applyController(r *config.Route, s *controller.Settings) {
	if s == nil {
		return
	}
	if len(s.Deny) > 0 {
		c := config.Clients{}
		if r.Clients != nil {
			c = *r.Clients
		}
		c.Deny = slices.Concat(c.Deny, s.Deny)
		r.Clients = &c
	}
	r.Compress = s.Compress
	if len(s.Hide) > 0 {
		e := config.HeaderEdits{}
		if r.Response != nil {
			e = *r.Response
		}
		e.Remove = slices.Concat(s.Hide, e.Remove)
		r.Response = &e
	}
}

// hsts is what the ConfigMap sets for a route of these listeners.
func (v *conversion) hsts(listeners []string) *config.HSTS {
	if v.controller == nil || !slices.ContainsFunc(v.secure, func(l *config.Listener) bool { return slices.Contains(listeners, l.Name) }) {
		return nil
	}
	return v.controller.HSTS
}

// redirectStatus is the status of redirects to https.
func (v *conversion) redirectStatus() int {
	if v.controller == nil {
		return 308
	}
	return v.controller.RedirectStatus
}

// tellController reports the keys of the ConfigMap that weir does not apply.
func (v *conversion) tellController() {
	m := v.o.Controller
	if m == nil || v.settings.IngressNginx == nil {
		return
	}
	at := reference("v1", "ConfigMap", &m.ObjectMeta)
	v.tellKeyScript(at)
	var others []string
	for _, k := range controller.Rate(m.Data) {
		switch {
		case k.Refused:
			v.event(at, event.ReasonSetting, "The key %s restricts access, or may, and weir does not support it, so all paths of all Ingresses answer 503: %s.", k.Name, k.Why)
		case k.Trust:
			v.event(at, event.ReasonSetting, "weir does not apply the key %s: %s. weir migrate prints what to write. If weir's file has it already, ignore this event, and remove the key when ingress-nginx is gone.", k.Name, k.Why)
		case k.IsUnsupported():
			others = append(others, k.Name)
		}
	}
	if len(others) > 0 {
		v.event(at, event.ReasonSetting, "weir does not apply these keys; run weir lint to see what to do instead, and remove them when ingress-nginx is gone: %s.", strings.Join(others, ", "))
	}
}

// missingController is the reason why weir waits: the ConfigMap that the configuration names does not exist.
func missingController(name config.ObjectName) error {
	return fmt.Errorf("the ConfigMap %s of kubernetes.ingress_nginx does not exist, so weir does not know whom ingress-nginx would refuse; create it, or remove the key", name)
}
