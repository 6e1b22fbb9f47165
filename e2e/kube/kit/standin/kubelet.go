package standin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod is a Pod that a node has to run.
type pod struct {
	namespace, name, node, address string
	stop                           []func()
	done                           chan struct{} // closed when the Pod must end
	ending                         bool
	log                            podLog
}

// see handles one change of a Pod. It is called for the changes in their order.
func (c *cluster) see(ctx context.Context, p *corev1.Pod) {
	node := slices.Index(nodes, p.Spec.NodeName)
	if node < 0 {
		if p.Spec.NodeName == "" && p.DeletionTimestamp != nil {
			go c.remove(ctx, p)
		}
		c.wake()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.pods[p.UID]
	if r == nil {
		r = &pod{namespace: p.Namespace, name: p.Name, node: p.Spec.NodeName, address: c.address(p, node), done: make(chan struct{})}
		c.pods[p.UID] = r
		if p.DeletionTimestamp == nil {
			go c.run(ctx, p, r, nodeAddress(node))
		}
	}
	switch want := wanted(p); {
	case p.DeletionTimestamp != nil:
		if !r.ending {
			r.ending = true
			go c.terminate(ctx, p)
		}
	case p.Status.Phase == corev1.PodRunning && want != ready(p):
		go c.tell(ctx, p, map[string]any{"conditions": conditions(want)})
	}
}

func wanted(p *corev1.Pod) bool { return p.Annotations[annotationReady] != "false" }

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

func conditions(ready bool) (all []corev1.PodCondition) {
	now := metav1.Now()
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}
		if !ready && (kind == corev1.ContainersReady || kind == corev1.PodReady) {
			c.Status, c.Reason = corev1.ConditionFalse, "ContainersNotReady"
		}
		all = append(all, c)
	}
	return all
}

// address returns the address that the Pod already has, or a free one of the node's range.
func (c *cluster) address(p *corev1.Pod, node int) string {
	switch {
	case p.Status.PodIP != "":
		c.taken[p.Status.PodIP] = true
		return p.Status.PodIP
	case p.Spec.HostNetwork:
		return nodeAddress(node)
	}
	name := nodes[node]
	for range 250 {
		c.next[name] = c.next[name]%250 + 1
		if a := fmt.Sprintf("10.244.%d.%d", node+1, c.next[name]+2); !c.taken[a] {
			c.taken[a] = true
			return a
		}
	}
	panic("there is no free address on " + name)
}

func (c *cluster) run(ctx context.Context, p *corev1.Pod, r *pod, host string) {
	stop, err := c.serve(ctx, p, r)
	for n := 0; err != nil; n++ { // a Secret may be missing yet
		if n == 0 {
			fmt.Println("cannot run", p.Namespace, p.Name, err)
		}
		select {
		case <-r.done:
			return
		case <-time.After(200 * time.Millisecond):
		}
		stop, err = c.serve(ctx, p, r)
	}
	c.mu.Lock()
	select {
	case <-r.done: // the Pod was ended meanwhile
		c.mu.Unlock()
		stopAll(stop)
		return
	default:
		r.stop = stop
	}
	c.mu.Unlock()
	now := metav1.Now()
	var containers []corev1.ContainerStatus
	for _, s := range p.Spec.Containers {
		containers = append(containers, corev1.ContainerStatus{
			Name: s.Name, Image: s.Image, ImageID: s.Image, ContainerID: "standin://" + string(p.UID) + "/" + s.Name,
			Ready: true, Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	c.tell(ctx, p, map[string]any{
		"phase": corev1.PodRunning, "hostIP": host, "hostIPs": []corev1.HostIP{{IP: host}}, "podIP": r.address, "podIPs": []corev1.PodIP{{IP: r.address}},
		"startTime": now, "conditions": conditions(wanted(p)), "containerStatuses": containers,
	})
}

// tell patches the status of a Pod.
func (c *cluster) tell(ctx context.Context, p *corev1.Pod, status map[string]any) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	for range 5 {
		if err == nil {
			_, err = c.api.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		fmt.Println("cannot tell of", p.Namespace, p.Name, err)
		time.Sleep(100 * time.Millisecond)
		err = nil
	}
}

// terminate lets a deleted Pod serve for some time. Then it ends the Pod and deletes the object.
func (c *cluster) terminate(ctx context.Context, p *corev1.Pod) {
	d := linger
	if own, err := time.ParseDuration(p.Annotations[annotationLinger]); err == nil {
		d = own
	}
	if s := p.DeletionGracePeriodSeconds; s != nil {
		d = min(d, time.Duration(*s)*time.Second)
	}
	time.Sleep(d)
	c.end(p.UID)
	c.remove(ctx, p)
}

func (c *cluster) remove(ctx context.Context, p *corev1.Pod) {
	for range 100 { // the API server may be away
		err := c.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// end closes the listeners of a Pod and their connections.
func (c *cluster) end(uid types.UID) {
	c.mu.Lock()
	r := c.pods[uid]
	var stop []func()
	if r != nil {
		r.ending = true
		stop, r.stop = r.stop, nil
		select {
		case <-r.done:
		default:
			close(r.done)
		}
	}
	c.mu.Unlock()
	stopAll(stop)
}

func stopAll(stop []func()) {
	for _, f := range stop {
		f()
	}
}

// forget frees the Pod's address when the object is gone.
func (c *cluster) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.pods[uid]; r != nil {
		delete(c.taken, r.address)
		delete(c.pods, uid)
	}
}
