package kube

import networkingv1 "k8s.io/api/networking/v1"

// Ingresses are all known Ingresses of all classes, with their current status. None
// may be changed.
func (s *Source) Ingresses() []*networkingv1.Ingress { return all[*networkingv1.Ingress](s, Ingresses) }
