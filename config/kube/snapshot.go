package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// snapshotTimeout limits one list request.
const snapshotTimeout = 30 * time.Second

// Snapshot reads the Ingresses, IngressClasses and Services of a cluster once. It
// reads no Secrets.
func (c *Client) Snapshot(ctx context.Context) (*Manifests, error) {
	m := &Manifests{}
	for _, kind := range []Kind{IngressClasses, Ingresses, Services} {
		if err := c.read(ctx, kind, m); err != nil {
			return nil, fmt.Errorf("cannot list %s: %w", kind, err)
		}
	}
	return m, nil
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
