package controller

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
	"github.com/weirproxy/weir/proxy/script"
)

// This file has the keys block-user-agents and block-referers. Each is a list of entries of the directive map of nginx:
// texts in any case, and regular expressions.

// blocking is a key that refuses requests by an HTTP header.
func blocking(name, variable string) *key {
	return &key{rating: annotation.Near, why: "weir compares regular expressions in the syntax of RE2; if it cannot read one, it answers 503 for all Ingresses",
		set: func(v string, s *Settings) {
			text, err := blocks(variable, v)
			if err != nil {
				s.closes = append(s.closes, name)
			}
			s.Blocks += text
		},
		refuses: func(v string) bool { _, err := blocks(variable, v); return err != nil },
		wrong:   func(v string) error { _, err := blocks(variable, v); return err }}
}

// blocks returns directives that refuse the requests of a list.
func blocks(variable, list string) (string, error) {
	var all strings.Builder
	for _, entry := range strings.Split(list, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		word, err := script.Word(entry)
		if err != nil {
			return "", fmt.Errorf("the entry %q (%w)", entry, err)
		}
		operator, expression := "~*", "^"+regexp.QuoteMeta(strings.TrimPrefix(word, `\`))+"$"
		switch rest, isExpression := strings.CutPrefix(word, "~"); {
		case isExpression && strings.HasPrefix(rest, "*"):
			expression = rest[1:]
		case isExpression:
			operator, expression = "~", rest
		case word == "default" || word == "hostnames" || word == "volatile" || word == "include":
			return "", fmt.Errorf("the entry %q, a parameter of map in nginx", word)
		}
		fmt.Fprintf(&all, "if (%s %s %s) { return 403; }\n", variable, operator, script.Quote(expression))
	}
	if _, err := (&config.Script{Host: all.String()}).Parse(); err != nil {
		return "", err
	}
	return all.String(), nil
}
