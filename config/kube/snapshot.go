package kube

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/weirproxy/weir/config"
)

// snapshotTimeout limits one list request.
const snapshotTimeout = 30 * time.Second

// Snapshot reads the Ingresses, IngressClasses and Services of a cluster once, and how
// ingress-nginx's controller is configured. It reads no Secrets.
func (c *Client) Snapshot(ctx context.Context) (*Manifests, error) {
	m := &Manifests{}
	for _, kind := range []Kind{IngressClasses, Ingresses, Services} {
		if err := c.read(ctx, kind, m); err != nil {
			return nil, fmt.Errorf("cannot list %s: %w", kind, err)
		}
	}
	if err := c.controllers(ctx, m); err != nil {
		return nil, err
	}
	return m, nil
}

// ReadMaps reads ConfigMaps that annotations name, for conversions of the manifests. It skips those that it may not read.
func (c *Client) ReadMaps(ctx context.Context, m *Manifests, names []config.ObjectName) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	m.Maps = map[config.ObjectName]NamedMap{}
	for _, name := range names {
		o := &corev1.ConfigMap{}
		err := c.core.Get().Namespace(name.Namespace).Resource("configmaps").Name(name.Name).Do(ctx).Into(o)
		switch {
		case err == nil:
			m.Maps[name] = NamedMap{Map: o}
		case apierrors.IsNotFound(err):
			m.Maps[name] = NamedMap{}
		}
	}
}

// controllers reads the Deployments and DaemonSets of ingress-nginx's controller, and the ConfigMaps that they name.
func (c *Client) controllers(ctx context.Context, m *Manifests) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	for _, kind := range []string{"deployments", "daemonsets"} {
		text, err := c.text().AbsPath("/apis/apps/v1/" + kind).DoRaw(ctx)
		if err == nil {
			err = m.Read(bytes.NewReader(text))
		}
		if err != nil {
			return fmt.Errorf("cannot list %s, whose arguments configure ingress-nginx: %w", kind, err)
		}
	}
	for _, one := range m.Controllers {
		for _, flag := range []string{"configmap", "tcp-services-configmap", "udp-services-configmap"} {
			name, ok := one.ConfigMap(flag)
			if !ok {
				continue
			}
			text, err := c.text().Namespace(name.Namespace).Resource("configmaps").Name(name.Name).DoRaw(ctx)
			if apierrors.IsNotFound(err) {
				continue // ingress-nginx takes its defaults
			}
			if err == nil {
				err = m.Read(bytes.NewReader(text))
			}
			if err != nil {
				return fmt.Errorf("cannot read the ConfigMap %s of ingress-nginx: %w", name, err)
			}
		}
	}
	return nil
}

// text is a request whose response is JSON, which Manifests read. Other requests ask for protobuf.
func (c *Client) text() *rest.Request {
	return c.core.Get().SetHeader("Accept", runtime.ContentTypeJSON)
}

func (c *Client) read(ctx context.Context, kind Kind, m *Manifests) error {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	list, err := c.List(kind, Selection{}).ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return meta.EachListItem(list, func(o runtime.Object) error {
		switch o := o.(type) {
		case *networkingv1.IngressClass:
			m.Classes = append(m.Classes, o)
		case *networkingv1.Ingress:
			m.Ingresses = append(m.Ingresses, o)
		case *corev1.Service:
			m.Services = append(m.Services, o)
		}
		return nil
	})
}
