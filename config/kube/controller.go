package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/controller"
	"github.com/weirproxy/weir/config/kube/event"
)

// asController reads Ingresses as ingress-nginx's controller reads them with its ConfigMap.
type asController struct {
	file     *config.Config
	object   *corev1.ConfigMap
	settings *controller.Settings // nil: the configuration names no ConfigMap
	read     map[*networkingv1.Ingress]*networkingv1.Ingress
}

// of returns the reader for the objects. It is the same one while the ConfigMap and the file are the same.
func (a *asController) of(file *config.Config, o *Objects) *asController {
	n := file.Kubernetes.IngressNginx
	switch {
	case n == nil:
		return &asController{file: file}
	case a != nil && a.file == file && a.object == o.Controller && a.settings != nil:
		return a
	}
	var data map[string]string
	if o.Controller != nil {
		data = o.Controller.Data
	}
	given := file.Kubernetes.Timeouts
	s := controller.Read(data).Without(map[string]bool{
		"proxy-connect-timeout": given.Connect != 0, "proxy-read-timeout": given.Read != 0, "proxy-send-timeout": given.Send != 0})
	return &asController{file: file, object: o.Controller, settings: s, read: map[*networkingv1.Ingress]*networkingv1.Ingress{}}
}

// all returns the Ingresses as the controller reads them. Equal Ingresses give equal pointers, so that a conversion
// can find out what changed.
func (a *asController) all(ingresses []*networkingv1.Ingress) []*networkingv1.Ingress {
	if a.settings == nil {
		return ingresses
	}
	known := a.read
	a.read = make(map[*networkingv1.Ingress]*networkingv1.Ingress, len(ingresses))
	changed := make([]*networkingv1.Ingress, len(ingresses))
	for n, i := range ingresses {
		one := known[i]
		if one == nil {
			one = a.settings.Apply(i)
		}
		a.read[i], changed[n] = one, one
	}
	return changed
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
	var others []string
	for _, k := range controller.Rate(m.Data) {
		switch {
		case k.Refused:
			v.event(at, event.ReasonSetting, "The key %s restricts access, or may, and weir does not support it, so all paths of all Ingresses answer 503: %s.", k.Name, k.Why)
		case k.Trust:
			v.event(at, event.ReasonSetting, "weir does not apply the key %s: %s. weir migrate prints what to write.", k.Name, k.Why)
		case k.IsUnsupported():
			others = append(others, k.Name)
		}
	}
	if len(others) > 0 {
		v.event(at, event.ReasonSetting, "weir does not apply these keys; run weir lint to see what to do instead: %s.", strings.Join(others, ", "))
	}
}

// missingController is the reason why weir waits: the ConfigMap that the configuration names does not exist.
func missingController(name config.ObjectName) error {
	return fmt.Errorf("the ConfigMap %s of kubernetes.ingress_nginx does not exist, so weir does not know whom ingress-nginx would refuse; create it, or remove the key", name)
}
