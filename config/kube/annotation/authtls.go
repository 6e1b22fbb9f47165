package annotation

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/weirproxy/weir/proxy/expression"
)

// authTLSs is the family of client certificates.
var authTLSs = union([]map[string]judge{
	{"auth-tls-secret": {look: rateIn(readAuthTLS, "auth-tls-secret"), set: setAuthTLS}},
	ratedBy(readAuthTLS, besideSecret...),
})

// besideSecret are the annotations that have an effect only with auth-tls-secret.
var besideSecret = []string{"auth-tls-verify-client", "auth-tls-verify-depth", "auth-tls-error-page", "auth-tls-pass-certificate-to-upstream", "auth-tls-match-cn"}

// AuthTLS is how the hosts of an Ingress treat client certificates. The other fields count only with
// Secret.
type AuthTLS struct {
	Secret    string // has the CAs, and perhaps revocation lists; empty: no annotation
	Verify    string // on, off, optional or optional_no_ca
	Depth     int    // the maximum number of intermediate CAs
	Subject   string // an expression (RE2) for a part of the subject; empty: any subject
	ErrorPage string // the URL of a page, perhaps without a scheme; empty: none
	Forward   bool   // endpoints get the whole certificate
}

const (
	needsAuthTLS = "the annotation has an effect only with auth-tls-secret, in weir as in ingress-nginx"
	otherTLS     = "the Secret is in another namespace, or its name is not valid, so " + closedFor + ", as ingress-nginx does; write namespace/name of a Secret in the namespace of the Ingress"
	badVerify    = "ingress-nginx takes the value for on, and so does weir; write on, off, optional or optional_no_ca"
	badDepth     = "ingress-nginx takes the value for 1, and so does weir"
	negativeDeep = "nginx does not start with the value, and weir takes it for 1"
	badCN        = "ingress-nginx ignores an Ingress with this value, so " + closedFor + "; write CN= and a regular expression"
	longCN       = "weir cannot use this regular expression, so " + closedFor + "; write it in RE2, with at most 1024 bytes"
	badCertPage  = "ingress-nginx ignores an Ingress with this value, so " + closedFor + "; write a URL such as https://www.example.org/certificates"
	innerPage    = "nginx serves a path of the host itself to clients without a certificate, and weir lets no request past the check, so " + closedFor + "; write the URL of a page on another host, such as https://www.example.org/certificates"
	badPass      = "ingress-nginx ignores an Ingress with this value; weir takes it for false"
)

var certPage = regexp.MustCompile(`^(@[A-Za-z0-9_-]+|((https?://)?[A-Za-z0-9\-.]+(:\d+)?)?(/[A-Za-z0-9\-_.]+)*/?)$`)

func setAuthTLS(_ string, c context, s *Settings) (Rating, string) {
	s.AuthTLS, _ = readAuthTLS(c)
	return Exact, ""
}

// readAuthTLS reads the family. It returns the ratings of annotations that are not exact.
func readAuthTLS(c context) (a AuthTLS, ratings map[string]because) {
	ratings = map[string]because{}
	text := c.value("auth-tls-secret")
	if text == "" {
		for _, name := range besideSecret {
			if c.value(name) != "" {
				ratings[name] = because{Near, needsAuthTLS}
			}
		}
		return a, ratings
	}
	var ok bool
	if a.Secret, ok = c.named(text); !ok {
		ratings["auth-tls-secret"] = because{guard, otherTLS}
		return AuthTLS{}, ratings
	}
	if !strings.Contains(text, "/") {
		ratings["auth-tls-secret"] = because{Near, bareSecret}
	}
	switch verify := c.value("auth-tls-verify-client"); verify {
	case "on", "off", "optional", "optional_no_ca":
		a.Verify = verify
	default:
		if a.Verify = "on"; verify != "" {
			ratings["auth-tls-verify-client"] = because{Near, badVerify}
		}
	}
	a.readDepth(c.value("auth-tls-verify-depth"), ratings)
	if pass := c.value("auth-tls-pass-certificate-to-upstream"); pass != "" {
		var err error
		if a.Forward, err = strconv.ParseBool(pass); err != nil {
			ratings["auth-tls-pass-certificate-to-upstream"] = because{Near, badPass}
		}
	}
	a.readSubject(c.value("auth-tls-match-cn"), ratings)
	switch page := c.value("auth-tls-error-page"); {
	case !certPage.MatchString(page):
		ratings["auth-tls-error-page"] = because{guard, badCertPage}
	case strings.HasPrefix(page, "/"), strings.HasPrefix(page, "@"):
		ratings["auth-tls-error-page"] = because{guard, innerPage}
	default:
		a.ErrorPage = page
	}
	return a, ratings
}

func (a *AuthTLS) readDepth(text string, ratings map[string]because) {
	a.Depth = 1
	if text == "" {
		return
	}
	switch n, err := strconv.Atoi(text); {
	case err != nil || n == 0:
		ratings["auth-tls-verify-depth"] = because{Near, badDepth}
	case n < 0:
		ratings["auth-tls-verify-depth"] = because{Near, negativeDeep}
	default:
		a.Depth = n
	}
}

// readSubject reads auth-tls-match-cn. Its expression may match any part of the whole subject.
func (a *AuthTLS) readSubject(text string, ratings map[string]because) {
	if text == "" {
		return
	}
	rest, found := strings.CutPrefix(text, "CN=")
	if _, err := regexp.Compile(rest); err != nil || !found {
		ratings["auth-tls-match-cn"] = because{guard, badCN}
		return
	}
	if _, _, err := expression.Compile(text, expression.Anywhere); err != nil {
		ratings["auth-tls-match-cn"] = because{guard, longCN}
		return
	}
	a.Subject = text
}
