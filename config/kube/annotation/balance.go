package annotation

import (
	"regexp"
	"strconv"
	"strings"
)

// balances is the family of the choice of a Pod.
var balances = map[string]judge{
	"upstream-hash-by":             setting(hashBy),
	"upstream-hash-by-subset":      setting(hashSubset),
	"upstream-hash-by-subset-size": setting(subsetSize),
	"load-balance":                 setting(loadBalance),
	"service-upstream": setting(func(value string, _ context, s *Settings) (Rating, string) {
		s.Balance.OneAddress = isTrue(value)
		return Exact, ""
	}),
}

// Balance is how a Pod of a Service is chosen for a request.
type Balance struct {
	HashBy     []HashPart // requests with an equal key get the same Pod; empty: none
	Subset     bool       // requests with an equal key get one of a few Pods
	SubsetSize int        // their number; 0: the default
	RoundRobin bool       // the Pods get requests in turn
	OneAddress bool       // requests go to the address of the Service, and not to Pods
}

// HashPart is a part of the key by which a Pod is chosen. Exactly one field is not empty.
type HashPart struct {
	Text                  string
	Variable              string // as config.Variable names it
	Header, Cookie, Query string // a name
}

const (
	badHash     = "ingress-nginx refuses an Ingress with this value; weir balances its requests as usual; write variables such as $remote_addr or $http_x_user"
	unknownHash = "weir knows only $remote_addr, $binary_remote_addr, $scheme, $host, $http_host, $request_uri, $uri, $args, $request_method, $http_NAME, $cookie_NAME and $arg_NAME here, and balances the requests as usual; write one of these"
	ownSubsets  = "each key has Pods of its own; in ingress-nginx, the Pods are divided into fixed groups"
	leastBusy   = "weir selects two Pods at random, and sends the request to the less busy one"
	noBalance   = "ingress-nginx has no such method, or not by this annotation; weir selects two Pods at random, and sends the request to the less busy one; write round_robin or ewma"
)

var (
	validHash = regexp.MustCompile(`^[A-Za-z0-9\-_${}]*$`)
	hashParts = regexp.MustCompile(`\$\{(\w+)\}|\$(\w+)|[^$]+|\$`)
)

// hashVariables are the variables of nginx without a name of their own.
var hashVariables = map[string]string{
	"remote_addr": "client", "binary_remote_addr": "client", "scheme": "scheme", "host": "host", "http_host": "host", "request_uri": "uri",
	"uri": "path", "document_uri": "path", "args": "query", "query_string": "query", "request_method": "method",
}

// hashBy reads upstream-hash-by.
func hashBy(value string, _ context, s *Settings) (Rating, string) {
	text := strings.ReplaceAll(value, " ", "")
	if !validHash.MatchString(text) {
		return No, badHash
	}
	var parts []HashPart
	for _, found := range hashParts.FindAllStringSubmatch(text, -1) {
		name := found[1] + found[2]
		if name == "" {
			parts = append(parts, HashPart{Text: found[0]})
			continue
		}
		part, known := hashVariable(strings.ToLower(name))
		if !known {
			return No, unknownHash
		}
		parts = append(parts, part)
	}
	s.Balance.HashBy = parts
	return Exact, ""
}

func hashVariable(name string) (p HashPart, known bool) {
	if v := hashVariables[name]; v != "" {
		return HashPart{Variable: v}, true
	}
	for prefix, at := range map[string]*string{"http_": &p.Header, "cookie_": &p.Cookie, "arg_": &p.Query} {
		if rest, is := strings.CutPrefix(name, prefix); is && rest != "" {
			*at = rest
			return p, true
		}
	}
	return p, false
}

func hashSubset(value string, _ context, s *Settings) (Rating, string) {
	if s.Balance.Subset = isTrue(value); s.Balance.Subset {
		return Near, ownSubsets
	}
	return Exact, ""
}

func subsetSize(value string, _ context, s *Settings) (Rating, string) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return No, "weir ignores the value, and uses 3 Pods; write a number above 0"
	}
	s.Balance.SubsetSize = min(n, 100)
	return Exact, ""
}

func loadBalance(value string, _ context, s *Settings) (Rating, string) {
	switch value {
	case "round_robin":
		s.Balance.RoundRobin = true
		return Exact, ""
	case "ewma":
		return Near, leastBusy
	}
	return No, noBalance
}
