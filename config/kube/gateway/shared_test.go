package gateway

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// A status has at most as many addresses as the API allows. Addresses do not hide another fault, and equal
// addresses may be written differently.
func TestPublishedAddresses(t *testing.T) {
	var many []string
	for i := range 20 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i))
	}
	f := func(why string, programmed metav1.ConditionStatus, requested, published []string, want string) {
		t.Helper()
		s := &GatewayStatus{Requested: requested, GatewayStatus: gatewayv1.GatewayStatus{Conditions: []metav1.Condition{{Type: "Programmed", Status: programmed, Reason: "Before"}}}}
		got := s.WithPublished(published)
		if text := fmt.Sprintf("%d %s", len(got.Addresses), got.Conditions[0].Reason); text != want {
			t.Errorf("%s: the status has %s, not %s", why, text, want)
		}
		if len(s.Addresses) > 0 || s.Conditions[0].Reason != "Before" {
			t.Errorf("%s: the status before has changed", why)
		}
	}
	f("many addresses", "True", nil, many, "16 Before")
	f("no address", "True", nil, nil, "0 AddressNotAssigned")
	f("another fault", "False", nil, nil, "0 Before")
	f("a requested address", "True", []string{"2001:db8:0::1"}, []string{"192.0.2.1", "2001:db8::1"}, "2 Before")
	f("the second one is missing", "True", []string{"192.0.2.1", "192.0.2.2"}, []string{"192.0.2.1"}, "1 AddressNotUsable")
	f("no IP address", "True", []string{"a.example"}, []string{"a.example"}, "1 AddressNotUsable")
}
