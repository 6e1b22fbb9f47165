package annotation

import "strconv"

// traces is the family of traces. weir traces requests if its configuration has traces.
var traces = map[string]judge{
	"enable-opentelemetry":              setting(openTelemetry),
	"opentelemetry-trust-incoming-span": always(Near, "weir continues the trace of a client, and only senders in trust_forwarded decide whether it is sampled"),
	"opentelemetry-operation-name":      always(No, "weir names a span by the method and the route"),
}

const tracesInFile = "weir traces requests if its configuration has traces, and then those of every Ingress without the value false"

func openTelemetry(value string, _ context, s *Settings) (Rating, string) {
	switch enabled, err := strconv.ParseBool(value); {
	case err != nil:
		return No, "ingress-nginx ignores the value too; write true or false"
	case enabled:
		return Near, tracesInFile
	}
	s.Untraced = true
	return Exact, ""
}
