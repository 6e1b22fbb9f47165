package annotation

import (
	"regexp"
	"slices"
	"strings"
)

// aliases is the family of further hosts.
var aliases = map[string]judge{"server-alias": setting(serverAlias)}

const (
	maxAliases   = 100 // of one Ingress
	aliasOne     = "a wildcard matches exactly one label, and in ingress-nginx one or more"
	aliasNot     = "weir supports hosts and wildcards such as *.example.org here, and no regular expressions, so it serves only the other hosts of the list; add rules for the hosts"
	tooManyAlias = "weir serves only the first 100 hosts of the list; add rules for the others"
)

var aliasHost = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?\.)*[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`)

// serverAlias reads server-alias: hosts between commas.
func serverAlias(value string, _ context, s *Settings) (rating Rating, why string) {
	rating = Exact
	for one := range strings.SplitSeq(value, ",") {
		host := strings.ToLower(strings.TrimSpace(one))
		switch {
		case host == "" || slices.Contains(s.Aliases, host):
			continue
		case len(host) > 253 || !aliasHost.MatchString(host):
			rating, why = No, aliasNot
			continue
		case len(s.Aliases) == maxAliases:
			return No, tooManyAlias
		case strings.HasPrefix(host, "*.") && rating == Exact:
			rating, why = Near, aliasOne
		}
		s.Aliases = append(s.Aliases, host)
	}
	return rating, why
}
