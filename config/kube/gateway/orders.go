package gateway

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// ReasonCertificateNotIssued is the reason of the condition Programmed of a listener without a certificate, after
// an attempt of its issuer has failed.
const ReasonCertificateNotIssued = "CertificateNotIssued"

// Order is the state of a certificate that an issuer orders for a listener, if something is to be told of it.
type Order struct {
	Issuer, Host string
	// Ends is the end of the certificate that weir serves; zero: there is none.
	Ends time.Time
	// Failure is why the last attempt failed; empty: it did not fail, or has no result yet.
	Failure string
	// Unknown means that weir does not know yet whether there is a certificate: a process that has just started
	// has not read the storage.
	Unknown bool
}

// WithOrders returns the status while some certificates that listeners order are missing, or cannot be renewed.
// orders has them by the names in Made.Order. A condition with the status Unknown means that weir will know soon: an
// object keeps its condition until then. The result is s if s has none of these listeners, and before, which may be nil,
// if that says the same. s does not change.
func (s *Status) WithOrders(orders map[string]Order, before *Status) *Status {
	next, told := *s, false
	next.Gateways, next.Sets = slices.Clone(s.Gateways), slices.Clone(s.Sets)
	all := serving{}
	for i := range next.Sets {
		set, some := &next.Sets[i], serving{}
		set.Listeners = tellOrders(set.Listeners, set.Made, orders, ofEntry, &some, &told)
		tellServing(&set.Conditions, some, gatewayv1.ListenerSetReasonPending)
		all.join(some)
	}
	for i := range next.Gateways {
		g, some := &next.Gateways[i], all
		g.Listeners = tellOrders(g.Listeners, g.Made, orders, ofListener, &some, &told)
		tellServing(&g.Conditions, some, gatewayv1.GatewayReasonPending)
	}
	switch {
	case !told:
		return s
	case before != nil && reflect.DeepEqual(before.Gateways, next.Gateways) && reflect.DeepEqual(before.Sets, next.Sets):
		return before
	}
	return &next
}

// tellOrders returns a copy of the statuses of listeners that tells of their orders. It adds the listeners to some, and
// sets told if it tells of an order. fields returns the name and the conditions of a listener.
func tellOrders[T any](all []T, made map[gatewayv1.SectionName]Made, orders map[string]Order,
	fields func(*T) (gatewayv1.SectionName, *[]metav1.Condition), some *serving, told *bool) (next []T) {
	next = slices.Clone(all)
	for i := range next {
		name, conditions := fields(&next[i])
		*told = tellOrder(conditions, orders, made[name].Order) || *told
		some.add(*conditions)
	}
	return next
}

// tellOrder tells of the order in the condition Programmed of its listener, unless the listener serves nothing for
// another reason. It returns false if there is nothing to tell.
func tellOrder(conditions *[]metav1.Condition, orders map[string]Order, name string) bool {
	o, some := orders[name]
	if name == "" || !some {
		return false
	}
	setProgrammed(conditions, func(c *metav1.Condition) {
		switch {
		case !o.Ends.IsZero():
			c.Message += fmt.Sprintf(" The issuer %s has not renewed the certificate of %s, which ends at %s: %s. weir tries again.", o.Issuer, o.Host, o.Ends.UTC().Format(time.RFC3339), sentence(o.Failure))
		case o.Failure != "":
			c.Status, c.Reason = metav1.ConditionFalse, ReasonCertificateNotIssued
			c.Message = fmt.Sprintf("The issuer %s has not issued the certificate of %s: %s. weir tries again, and refuses handshakes for the host until there is a certificate.", o.Issuer, o.Host, sentence(o.Failure))
		default:
			c.Status, c.Reason = metav1.ConditionFalse, string(gatewayv1.ListenerReasonPending)
			c.Message = fmt.Sprintf("The issuer %s has not issued the certificate of %s yet.", o.Issuer, o.Host)
			if o.Unknown {
				c.Status = metav1.ConditionUnknown
			}
		}
		c.Message = shortened(c.Message)
	})
	return true
}

// maxFailure is the maximum length of the text of an authority in a condition.
const maxFailure = 1000

// sentence is a text without the full stop at its end.
func sentence(text string) string {
	return strings.TrimRight(strings.ToValidUTF8(text[:min(len(text), maxFailure)], ""), ". \n")
}

// setProgrammed changes a copy of the conditions, if the condition Programmed is true.
func setProgrammed(conditions *[]metav1.Condition, change func(*metav1.Condition)) {
	at := slices.IndexFunc(*conditions, func(c metav1.Condition) bool {
		return c.Type == string(gatewayv1.GatewayConditionProgrammed) && c.Status == metav1.ConditionTrue
	})
	if at >= 0 {
		*conditions = slices.Clone(*conditions)
		change(&(*conditions)[at])
	}
}

// serving says whether some listener of an object serves, or perhaps does.
type serving struct{ some, perhaps bool }

func (s *serving) add(listener []metav1.Condition) {
	for _, c := range listener {
		if c.Type == string(gatewayv1.ListenerConditionProgrammed) {
			s.join(serving{c.Status == metav1.ConditionTrue, c.Status == metav1.ConditionUnknown})
		}
	}
}

func (s *serving) join(o serving) { s.some, s.perhaps = s.some || o.some, s.perhaps || o.perhaps }

// tellServing changes the condition Programmed of an object if none of its listeners serves.
func tellServing[R ~string](conditions *[]metav1.Condition, s serving, reason R) {
	if s.some {
		return
	}
	setProgrammed(conditions, func(c *metav1.Condition) {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, string(reason), "No listener serves anything yet; their conditions have the reasons."
		if s.perhaps {
			c.Status = metav1.ConditionUnknown
		}
	})
}
