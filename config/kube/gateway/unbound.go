package gateway

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// WithUnbound returns the status while weir cannot listen on some addresses of Gateways: these
// Gateways, ListenerSets and listeners are not programmed. unbound has a sentence for each of weir's
// listeners without a socket. The result is s if s has none of these listeners. s does not change.
func (s *Status) WithUnbound(unbound map[string]string) *Status {
	next, changed := *s, false
	next.Gateways, next.Sets = slices.Clone(s.Gateways), slices.Clone(s.Sets)
	for i := range next.Gateways {
		g, why := &next.Gateways[i], ""
		g.Listeners, why = listenersUnbound(g.Listeners, g.Made, unbound, ofListener)
		g.Conditions = notProgrammed(g.Conditions, gatewayv1.GatewayReasonAddressNotUsable, why)
		changed = changed || why != ""
	}
	for i := range next.Sets {
		set, why := &next.Sets[i], ""
		set.Listeners, why = listenersUnbound(set.Listeners, set.Made, unbound, ofEntry)
		set.Conditions = notProgrammed(set.Conditions, gatewayv1.ListenerSetReasonPending, why)
		changed = changed || why != ""
	}
	if !changed {
		return s
	}
	return &next
}

// ofListener returns the name and the conditions of a listener of a Gateway.
func ofListener(l *gatewayv1.ListenerStatus) (gatewayv1.SectionName, *[]metav1.Condition) {
	return l.Name, &l.Conditions
}

// ofEntry returns the name and the conditions of a listener of a ListenerSet.
func ofEntry(l *gatewayv1.ListenerEntryStatus) (gatewayv1.SectionName, *[]metav1.Condition) {
	return l.Name, &l.Conditions
}

// listenersUnbound returns a copy of the statuses of listeners. In the copy, each listener without a
// socket is not programmed. first says why the first such listener has no socket; empty: all have
// sockets. fields returns the name and the conditions of a listener.
func listenersUnbound[T any](all []T, made map[gatewayv1.SectionName]Made, unbound map[string]string,
	fields func(*T) (gatewayv1.SectionName, *[]metav1.Condition)) (next []T, first string) {
	next = slices.Clone(all)
	for i := range next {
		listener, conditions := fields(&next[i])
		why := ""
		for _, name := range made[listener].Listeners {
			why = cmp.Or(why, unbound[name])
		}
		*conditions = notProgrammed(*conditions, gatewayv1.ListenerReasonPending, why)
		first = cmp.Or(first, why)
	}
	return next, first
}

// notProgrammed returns conditions with a false condition Programmed, unless why is empty or the
// condition is false already.
func notProgrammed[R ~string](all []metav1.Condition, reason R, why string) []metav1.Condition {
	if why == "" {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		if c := &all[i]; c.Type == string(gatewayv1.GatewayConditionProgrammed) && c.Status == metav1.ConditionTrue {
			c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(reason), shortened(why)
		}
	}
	return all
}
