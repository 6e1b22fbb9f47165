package annotation

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// corses is the family of requests from pages of other origins.
var corses = union([]map[string]judge{
	{"enable-cors": {look: rateIn(readCORS, "enable-cors"), set: setCORS}},
	ratedBy(readCORS, "cors-allow-origin", "cors-allow-methods", "cors-allow-headers", "cors-expose-headers", "cors-allow-credentials", "cors-max-age"),
})

// CORS is what enable-cors and the annotations beside it ask for.
type CORS struct {
	Enabled                  bool
	Origins                  []string
	Methods, Headers, Expose string // values of HTTP headers; empty: none
	Credentials              bool
	MaxAge                   time.Duration
}

// The defaults of ingress-nginx.
const (
	corsMethods = "GET, PUT, POST, DELETE, PATCH, OPTIONS"
	corsHeaders = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization"
	corsMaxAge  = 1728000 * time.Second
)

const (
	badOrigins = "ingress-nginx allows every origin for this value; weir allows none; write origins such as https://app.example.org, separated by commas"
	badOrigin  = "ingress-nginx leaves out elements that are no origins, and so does weir; write origins such as https://app.example.org, separated by commas"
	corsVary   = "weir compares the whole origin, and ingress-nginx only its end; weir also sends Vary: Origin, so that caches keep responses for several origins apart"
	badCORS    = "ingress-nginx ignores the value, and uses its default, as weir does; write a list of names"
	badCORSBit = "ingress-nginx ignores the value, and uses its default, as weir does"
)

// What ingress-nginx accepts.
var (
	corsOriginList  = regexp.MustCompile(`^((((([a-z]+://)?(\*\.)?[A-Za-z0-9\-.]*(:\d+)?,?)|null)+)|\*)?$`)
	corsOriginOne   = regexp.MustCompile(`^([a-z]+://(\*\.)?[A-Za-z0-9\-.]*(:\d+)?|\*|null)?$`)
	corsMethodList  = regexp.MustCompile(`^([A-Za-z]+,?\s?)+$`)
	corsHeaderList  = regexp.MustCompile(`^[A-Za-z0-9-_, ]*$`)
	corsExposedList = regexp.MustCompile(`^(([A-Za-z0-9\-\_]+|\*),?\s?)+$`)
)

func setCORS(_ string, c context, s *Settings) (Rating, string) {
	s.CORS, _ = readCORS(c)
	return rateIn(readCORS, "enable-cors")("", c)
}

// readCORS reads the family. It returns the ratings of annotations that are not exact.
func readCORS(c context) (o CORS, ratings map[string]because) {
	ratings = map[string]because{}
	if enabled, err := strconv.ParseBool(c.value("enable-cors")); err != nil || !enabled {
		if err != nil && c.value("enable-cors") != "" {
			ratings["enable-cors"] = because{Near, "ingress-nginx takes the value for false, as weir does"}
		}
		return CORS{}, ratings
	}
	o = CORS{Enabled: true, Origins: []string{"*"}, Methods: corsMethods, Headers: corsHeaders, Credentials: true, MaxAge: corsMaxAge}
	if value := c.value("cors-allow-origin"); value != "" {
		var r because
		if o.Origins, r = corsOrigins(value); r.Rating != "" {
			ratings["cors-allow-origin"] = r
		}
	}
	text := func(name string, list *regexp.Regexp, dst *string) {
		value := c.value(name)
		switch {
		case value == "":
		case !list.MatchString(value) || strings.ContainsAny(value, "\r\n"):
			ratings[name] = because{Near, badCORS}
		default:
			*dst = value
		}
	}
	text("cors-allow-methods", corsMethodList, &o.Methods)
	text("cors-allow-headers", corsHeaderList, &o.Headers)
	text("cors-expose-headers", corsExposedList, &o.Expose)
	if value := c.value("cors-allow-credentials"); value != "" {
		if on, err := strconv.ParseBool(value); err == nil {
			o.Credentials = on
		} else {
			ratings["cors-allow-credentials"] = because{Near, badCORSBit}
		}
	}
	if value := c.value("cors-max-age"); value != "" {
		if n, err := strconv.Atoi(value); err == nil && n <= longestWait && n >= -longestWait {
			o.MaxAge = time.Duration(n) * time.Second
		} else {
			ratings["cors-max-age"] = because{Near, badCORSBit}
		}
	}
	return o, ratings
}

// corsOrigins reads a list of origins. Browsers write origins in lower case.
func corsOrigins(value string) (all []string, r because) {
	switch list := strings.ReplaceAll(value, " ", ""); {
	case slices.Contains(strings.Split(list, ","), "*"):
		return []string{"*"}, because{}
	case !corsOriginList.MatchString(list):
		return nil, because{Near, badOrigins}
	}
	r = because{Near, corsVary}
	for _, origin := range strings.Split(value, ",") {
		switch origin = strings.TrimSpace(origin); {
		case origin == "":
		case !corsOriginOne.MatchString(origin):
			r = because{Near, badOrigin}
		default:
			all = append(all, strings.ToLower(origin))
		}
	}
	return all, r
}
