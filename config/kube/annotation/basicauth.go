package annotation

import (
	"strings"
)

// basicAuths is the family of users and passwords from Secrets.
var basicAuths = map[string]judge{
	"auth-type":        {look: rateBasicAuth, set: setBasicAuth},
	"auth-secret":      looking(rateBasicAuth),
	"auth-secret-type": looking(rateBasicAuth),
	"auth-realm":       looking(rateBasicAuth),
}

// BasicAuth is what auth-type and the annotations beside it ask for. The zero value asks for
// nothing.
type BasicAuth struct {
	Secret string // its name, in the namespace of the Ingress; empty: no authentication
	// Map means that the keys of the Secret are users. Otherwise its key auth has a file of users.
	Map   bool
	Realm string
}

const (
	noAuthType    = "auth-type is missing, so ingress-nginx asks for no password, although the Ingress names a Secret of users; weir answers 503 for an Ingress that has it: write auth-type: basic, or remove the annotation"
	badAuthType   = "ingress-nginx does not know this type and does not serve the Ingress, and weir answers 503 for an Ingress that has it; write basic"
	noDigest      = "weir does not support digest authentication, and answers 503 for an Ingress that has it; write auth-type: basic, and a Secret with the output of htpasswd -B"
	noAuthSecret  = "auth-secret is missing, so weir answers 503 for an Ingress that has it, as ingress-nginx does; name a Secret of the same namespace"
	badAuthSecret = "auth-secret has to name a Secret of the same namespace, so weir answers 503 for an Ingress that has it, as ingress-nginx does; write its name"
	badSecretType = "ingress-nginx does not know this auth-secret-type and does not serve the Ingress, and weir answers 503 for an Ingress that has it; write auth-file or auth-map"
	badRealm      = "ingress-nginx does not accept this auth-realm and does not serve the Ingress, and weir answers 503 for an Ingress that has it; write letters, digits, spaces and any of - . _ ~ / :"
	realmOff      = "nginx turns authentication off for the realm off; weir does not"
)

func rateBasicAuth(_ string, c context) (Rating, string) {
	_, rating, why := readBasicAuth(c)
	return rating, why
}

func setBasicAuth(_ string, c context, s *Settings) (Rating, string) {
	auth, rating, why := readBasicAuth(c)
	if rating != guard {
		s.BasicAuth = auth
	}
	return rating, why
}

// readBasicAuth reads all annotations of the family.
func readBasicAuth(c context) (a BasicAuth, rating Rating, why string) {
	kind, secret, secretType, realm := c.value("auth-type"), c.value("auth-secret"), c.value("auth-secret-type"), c.value("auth-realm")
	switch {
	case kind == "" && secret == "":
		return a, Exact, "" // nothing names users, so nothing has an effect
	case kind == "":
		return a, guard, noAuthType
	case kind == "digest":
		return a, guard, noDigest
	case kind != "basic":
		return a, guard, badAuthType
	case secret == "":
		return a, guard, noAuthSecret
	case secretType != "" && secretType != "auth-file" && secretType != "auth-map":
		return a, guard, badSecretType
	case !isRealm(realm):
		return a, guard, badRealm
	}
	var ok bool
	if a.Secret, ok = c.named(secret); !ok {
		return BasicAuth{}, guard, badAuthSecret
	}
	if c.loose != nil {
		return BasicAuth{}, guard, c.loose.String()
	}
	a.Map, a.Realm = secretType == "auth-map", realm
	if realm == "off" {
		return a, Near, realmOff
	}
	return a, Exact, ""
}

// isRealm reports whether ingress-nginx accepts the realm. It fits into a quoted string.
func isRealm(s string) bool {
	return len(s) <= 1024 && !strings.ContainsFunc(s, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("-._~/: ", r))
	})
}
