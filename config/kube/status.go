package kube

import networkingv1 "k8s.io/api/networking/v1"

// Ingresses are all that are known, with the status that they have now, whoever's
// they are. None may be changed.
func (s *Source) Ingresses() []*networkingv1.Ingress { return all[*networkingv1.Ingress](s, Ingresses) }
