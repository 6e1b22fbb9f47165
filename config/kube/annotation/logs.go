package annotation

import "strconv"

// logs is the family of lines in logs.
var logs = map[string]judge{
	"enable-access-log":  setting(accessLog),
	"enable-rewrite-log": unless("false", Near, "weir has no rewrites to log"),
}

func accessLog(value string, _ context, s *Settings) (Rating, string) {
	on, err := strconv.ParseBool(value)
	if err != nil && value != "" {
		return Near, "ingress-nginx takes the value for true, as weir does"
	}
	s.Unlogged = err == nil && !on
	return Exact, ""
}
