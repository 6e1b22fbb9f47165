package gateway

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A Gateway without a certificate of its own serves what its ListenerSets serve.
func TestOrdersOfGatewayWithSets(t *testing.T) {
	programmed := func() []metav1.Condition {
		return []metav1.Condition{{Type: string(gatewayv1.GatewayConditionProgrammed), Status: metav1.ConditionTrue}}
	}
	f := func(sets []SetStatus, want metav1.ConditionStatus) {
		t.Helper()
		s := &Status{Sets: sets, Gateways: []GatewayStatus{{
			GatewayStatus: gatewayv1.GatewayStatus{Conditions: programmed(), Listeners: []gatewayv1.ListenerStatus{{Name: "own", Conditions: programmed()}}},
			Made:          map[gatewayv1.SectionName]Made{"own": {Order: "policy"}}}}}
		told := s.WithOrders(map[string]Order{"policy": {Issuer: "public", Host: "a.example"}}, nil)
		if g := told.Gateways[0]; g.Conditions[0].Status != want || g.Listeners[0].Conditions[0].Status != metav1.ConditionFalse {
			t.Errorf("the conditions are %+v, those of the listener %+v", g.Conditions, g.Listeners[0].Conditions)
		}
		if s.Gateways[0].Conditions[0].Status != metav1.ConditionTrue {
			t.Error("the status itself has changed")
		}
	}
	set := SetStatus{ListenerSetStatus: gatewayv1.ListenerSetStatus{Conditions: programmed(), Listeners: []gatewayv1.ListenerEntryStatus{{Name: "theirs", Conditions: programmed()}}}}
	f(nil, metav1.ConditionFalse)
	f([]SetStatus{set}, metav1.ConditionTrue)
}
