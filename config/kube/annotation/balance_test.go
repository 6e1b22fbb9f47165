package annotation

import (
	"maps"
	"testing"
)

func TestBalance(t *testing.T) {
	f := checkSetting(t, func(s Settings) Balance { return s.Balance })
	by := func(parts ...HashPart) Balance { return Balance{HashBy: parts} }
	f("upstream-hash-by: $request_uri", by(HashPart{Variable: "uri"}), Exact)
	f("upstream-hash-by: $request_uri$host", by(HashPart{Variable: "uri"}, HashPart{Variable: "host"}), Exact)
	f("upstream-hash-by: ${request_uri}-text-value", by(HashPart{Variable: "uri"}, HashPart{Text: "-text-value"}), Exact)
	f("upstream-hash-by: $http_X_User $cookie_session ${arg_id}", by(HashPart{Header: "x_user"}, HashPart{Cookie: "session"}, HashPart{Query: "id"}), Exact)
	f("upstream-hash-by: $binary_remote_addr", by(HashPart{Variable: "client"}), Exact)
	f("upstream-hash-by: text", by(HashPart{Text: "text"}), Exact)
	f("upstream-hash-by: ", Balance{}, Exact)
	f("upstream-hash-by: $ssl_client_s_dn", Balance{}, No)
	f("upstream-hash-by: $http_", Balance{}, No)
	f("upstream-hash-by: $a/b", Balance{}, No)
	f("upstream-hash-by-subset: true", Balance{Subset: true}, Near)
	f("upstream-hash-by-subset: false", Balance{}, Exact)
	f("upstream-hash-by-subset-size: 2", Balance{SubsetSize: 2}, Exact)
	f("upstream-hash-by-subset-size: 1000", Balance{SubsetSize: 100}, Exact)
	f("upstream-hash-by-subset-size: -1", Balance{}, No)
	f("load-balance: round_robin", Balance{RoundRobin: true}, Exact)
	f("load-balance: ewma", Balance{}, Near)
	f("load-balance: least_conn", Balance{}, No)
	f("service-upstream: true", Balance{OneAddress: true}, Exact)
	f("service-upstream: false", Balance{}, Exact)
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"upstream-hash-by":             {{"text and variables that weir knows", "$request_uri", false}, {"with another variable", "$ssl_cipher", false}, {"other values", "a/b", false}},
		"upstream-hash-by-subset":      {{"`true`", "true", false}, {"`false`", "false", false}},
		"upstream-hash-by-subset-size": {{"numbers", "3", false}, {"other values", "a", false}},
		"load-balance":                 {{"`round_robin`", "round_robin", false}, {"`ewma`", "ewma", false}, {"other values", "ip_hash", false}},
		"service-upstream":             {{"`true`, `false`", "true", false}},
	})
}
