package proxy

import (
	"fmt"
	"strings"
	"testing"
)

// The cases of ingress-nginx's test/e2e/annotations/upstreamhashby.go, and those of test/e2e/loadbalance.
func TestIngressBalance(t *testing.T) {
	i := newIngressRig(t, "", ingress("a/uri", 1, "uri.test Prefix / three", "upstream-hash-by: $request_uri")+
		ingress("a/header", 1, "header.test Prefix / three", "upstream-hash-by: $http_x_user-text-${cookie_c}")+
		ingress("a/query", 1, "query.test Prefix / three", "upstream-hash-by: $arg_id")+
		ingress("a/subset", 1, "subset.test Prefix / three", "upstream-hash-by: $uri", "upstream-hash-by-subset: true", "upstream-hash-by-subset-size: 2")+
		ingress("a/turn", 1, "turn.test Prefix / three", "load-balance: round_robin")+ingress("a/ewma", 1, "ewma.test Prefix / three", "load-balance: ewma"))
	pods := func(n int, request func(n int) string) map[string]int {
		all := map[string]int{}
		for n := range n {
			all[i.ask("GET "+request(n)).Header.Get("Pod")]++
		}
		return all
	}
	always := func(request string) func(int) string { return func(int) string { return request } }
	for _, same := range []string{"http://uri.test/a?b", "http://header.test/\nX-User: a\nCookie: c=1", "http://query.test/\nx: y", "http://query.test/?ID=7&x"} {
		if got := pods(10, always(same)); len(got) != 1 {
			t.Errorf("%s goes to the Pods %v", same, got)
		}
	}
	for _, other := range []string{"http://uri.test/%d", "http://header.test/\nX_User: %d\nX-User: %[1]d", "http://header.test/\nCookie: c=%d", "http://query.test/?id=%d"} {
		if got := pods(60, func(n int) string { return fmt.Sprintf(other, n) }); len(got) != 3 || got["0"] < 5 || got["1"] < 5 || got["2"] < 5 {
			t.Errorf("%s goes to the Pods %v", other, got)
		}
	}
	if got := pods(60, always("http://subset.test/a")); len(got) != 2 {
		t.Errorf("a key with a subset of two goes to the Pods %v", got)
	}
	if got := pods(200, func(n int) string { return fmt.Sprint("http://subset.test/", n) }); len(got) != 3 {
		t.Errorf("the keys with subsets of two go to the Pods %v", got)
	}
	if got := pods(9, always("http://turn.test/")); got["0"] != 3 || got["1"] != 3 || got["2"] != 3 {
		t.Errorf("9 requests in turn go to the Pods %v", got)
	}
	if got := pods(30, always("http://ewma.test/")); got["0"]+got["1"]+got["2"] != 30 {
		t.Errorf("30 requests go to the Pods %v", got)
	}
}

// The controller's ConfigMap has the method of all Ingresses without one.
func TestIngressBalanceOfConfigMap(t *testing.T) {
	file := strings.Replace(ingressFile, "{class: weir}", "{class: weir, ingress_nginx: {config_map: nginx/controller}}", 1)
	i := newIngressRig(t, file, "{apiVersion: v1, kind: ConfigMap, metadata: {name: controller, namespace: nginx}, data: {load-balance: round_robin}}\n---\n"+
		ingress("a/turn", 1, "load-balance.com Prefix / three"))
	all := map[string]int{}
	for range 60 {
		all[i.ask("GET http://load-balance.com/").Header.Get("Pod")]++
	}
	if all["0"] != 20 || all["1"] != 20 || all["2"] != 20 {
		t.Errorf("60 requests in turn go to the Pods %v", all)
	}
}
