package standin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

func (c *cluster) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// schedule binds Pods to nodes whenever an object has changed.
func (c *cluster) schedule(ctx context.Context) {
	bound := map[types.UID]string{} // bindings that the informer may not show yet
	for range c.kick {
		nodes, _ := c.nodes.List(labels.Everything())
		pods, _ := c.list.List(labels.Everything())
		slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
		for uid := range bound {
			if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.UID == uid }) {
				delete(bound, uid)
			}
		}
		for _, p := range pods {
			if p.Spec.NodeName != "" || p.DeletionTimestamp != nil || bound[p.UID] != "" || len(p.Spec.SchedulingGates) > 0 {
				continue
			}
			if best := choose(p, nodes, pods, bound); best != "" && c.bind(ctx, p, best) {
				bound[p.UID] = best
			}
		}
	}
}

// choose returns a node on which p may run: the one with the fewest siblings of p, and among those the one
// with the fewest Pods.
func choose(p *corev1.Pod, nodes []*corev1.Node, pods []*corev1.Pod, bound map[types.UID]string) (best string) {
	least := 0
	for _, n := range nodes {
		if !fits(p, n) {
			continue
		}
		score := 0
		for _, q := range pods {
			if on := q.Spec.NodeName; q.DeletionTimestamp != nil || on != n.Name && (on != "" || bound[q.UID] != n.Name) {
				continue
			}
			score++
			if a, b := metav1.GetControllerOf(p), metav1.GetControllerOf(q); a != nil && b != nil && a.UID == b.UID {
				score += 1000
			}
		}
		if best == "" || score < least {
			best, least = n.Name, score
		}
	}
	return best
}

func (c *cluster) bind(ctx context.Context, p *corev1.Pod, node string) bool {
	err := c.api.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		fmt.Println("cannot bind", p.Namespace, p.Name, err)
	}
	return err == nil
}

func fits(p *corev1.Pod, n *corev1.Node) bool {
	taints := slices.Clone(n.Spec.Taints)
	if n.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for i := range taints {
		tolerated := slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(klog.Background(), &taints[i], false) })
		if taints[i].Effect != corev1.TaintEffectPreferNoSchedule && !tolerated {
			return false
		}
	}
	for key, value := range p.Spec.NodeSelector {
		if n.Labels[key] != value {
			return false
		}
	}
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchFields, func(r corev1.NodeSelectorRequirement) bool { return !meets(r, n.Name, true) }) && // the only field is metadata.name
			!slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
				value, there := n.Labels[r.Key]
				return !meets(r, value, there)
			})
	})
}

func meets(r corev1.NodeSelectorRequirement, value string, there bool) bool {
	in := there && slices.Contains(r.Values, value)
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		return in
	case corev1.NodeSelectorOpNotIn:
		return !in
	case corev1.NodeSelectorOpExists:
		return there
	case corev1.NodeSelectorOpDoesNotExist:
		return !there
	}
	return false
}
