package annotation

// satisfies is the family of how address lists and authentication combine.
var satisfies = map[string]judge{"satisfy": setting(satisfy)}

const denyAnyway = "weir refuses the clients in denylist-source-range; in nginx they may use the paths after authentication"

// satisfy reads satisfy. ingress-nginx ignores values other than all and any.
func satisfy(value string, c context, s *Settings) (Rating, string) {
	if value != "any" {
		return Exact, ""
	}
	s.Any = true
	if c.value("denylist-source-range") != "" {
		return Near, denyAnyway
	}
	return Exact, ""
}
