package message

import (
	"slices"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	f := func(name string, want ID) {
		t.Helper()
		if got := Lookup([]byte(name)); got != want {
			t.Errorf("%q is %d (%s) and not %d (%s)", name, got, got, want, want)
		}
	}
	for id, name := range names {
		if name == "" {
			continue
		}
		f(name, ID(id))
		f(strings.ToLower(name), ID(id))
		f(strings.ToUpper(name), ID(id))
		longer := Other
		switch {
		case strings.HasPrefix(name, "X-Forwarded-"):
			longer = XForwardedOther
		case strings.HasPrefix(name, "X-Client-Cert-"):
			longer = ClientCertOther
		}
		f(name+"x", longer)
		if strings.Contains(name, "-") {
			for _, c := range separators {
				f(strings.ReplaceAll(name, "-", string(c)), Misspelt)
				f(strings.Replace(strings.ToUpper(name), "-", string(c), 1), Misspelt)
			}
			f(strings.Replace(name, "-", "--", 1), familyOf(strings.Replace(name, "-", "--", 1)))
		}
	}
	for _, o := range others {
		f(o.name, o.id)
		f(strings.ToUpper(o.name), o.id)
		for _, c := range separators {
			f(strings.ReplaceAll(o.name, "-", string(c)), Misspelt)
		}
	}
	f("X!Client!Cert!Subject", Misspelt)
	f("X~Forwarded~For", Misspelt)
	f("X-Forwarded'For", Misspelt)
	f("X--Forwarded-For", Other) // HTTP_X__FORWARDED_FOR is another variable
	f("X-Forwarded--For", XForwardedOther)
	f("-X-Forwarded-For", Other)
	f("Proxy", Proxy)
	f("PROXY", Proxy)
	f("Proxy-", Other)
	f("X-Original-Url", OtherURL)
	f("X_REWRITE_URL", Misspelt)
	f("X-Client_IP", Misspelt)
	f("", Other)
	f("x", Other)
	f("Cookie", Other)
	f("Hos", Other)
	f("X-Custom", Other)
	f("X_Custom", Other)
	f("X-Forwarded", ClientAddress)
	f("X-Forwarded-", Other)
	f("X-Forwarded-Server", XForwardedOther)
	f("x-forwarded-p", XForwardedOther)
	f("X-FORWARDED-"+strings.Repeat("y", 100), XForwardedOther)
	f("X_Forwarded-Server", Misspelt)
	f("X-Forwarded_Server", Misspelt)
	f("x.forwarded.server", Misspelt)
	f("X-Forwarded-For_", XForwardedOther)
	for _, name := range []string{"X-Forwarded-Client-Cert", "X-Forwarded-Tls-Client-Cert", "X-Forwarded-Tls-Client-Cert-Info",
		"X-Client-Cert", "X-Client-Cert-Verified", "X-Client-Cert-Chain-Verified", "X-Client-Certificate", "X-Client-Verify", "X-Client-DN",
		"X-SSL-Client-Cert", "X-SSL-Client-Verify", "X-SSL-Client-S-DN", "X-SSL-Client-CN", "X-SSL-Client", "X-SSL-CERT", "ssl-client-verify",
		"SSL-CLIENT-SUBJECT-DN", "X-Amzn-Mtls-Clientcert-Leaf", "X-ARR-ClientCert", "Cf-Client-Cert-Der-Base64"} {
		f(name, ClientCertOther)
		f(strings.ToLower(name), ClientCertOther)
		f(strings.ReplaceAll(name, "-", "_"), Misspelt)
		f(strings.Replace(name, "-", ".", 1), Misspelt)
	}
	f("SSL_CLIENT_CERT", Misspelt)
	f("Client-Certificate", Other)
	f("ssl-client-", Other)
	f("X-SSL", Other)
	f("\x18-ssl-client-cert", Other)
	f("Cf-Connecting-IP", ClientAddress)
	f("Cf-Connecting", Other)
	f("X\rForwarded\rFor", Misspelt) // such bytes cannot arrive in a name
	f("X\x4dForwarded-For", Other)   // only letters have an upper and a lower case; other bytes with the same distance are different
	f("X-Real\x49IP", Other)
	f("\x18-real-ip", Other)
	f(strings.Repeat("x", 1000), Other)
}

// separators are the characters of a name that are neither letters, digits nor the hyphen.
const separators = "!#$%&'*+.^_`|~"

// familyOf is a simple implementation that finds the beginning of a name.
func familyOf(name string) ID {
	for i := range families {
		if f := &families[i]; strings.HasPrefix(asciiLower(name), f.begins) && (len(name) > len(f.begins) || !strings.HasSuffix(f.begins, "-")) {
			return f.id
		}
	}
	return Other
}

// hyphened returns a name as a server passes it to a program, but with hyphens.
func hyphened(name string) string {
	b := []byte(asciiLower(name))
	for i, c := range b {
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9') {
			b[i] = '-'
		}
	}
	return string(b)
}

// FuzzLookup compares Lookup with a simple implementation.
func FuzzLookup(f *testing.F) {
	for _, name := range names {
		f.Add(name)
	}
	for i := range families {
		f.Add(families[i].begins)
		f.Add(strings.ToUpper(families[i].begins) + "x")
	}
	for _, name := range []string{"x_forwarded-For", "X-Forwarded-", "X.Forwarded.Any", "Content_Length", "cookie", "\x88ost", "hos\u0167",
		"X!Client!Cert!Subject", "X~Forwarded~For", "X--Forwarded-For", "Proxy", "True|Client|IP", "x`rewrite-url", "SSL*CLIENT*S*DN", "X-Forwarded-\x00"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		want := Other
		plain, hyphens := asciiLower(name), hyphened(name)
		whole := map[string]ID{}
		for id, n := range names {
			whole[asciiLower(n)] = ID(id)
		}
		for _, o := range others {
			whole[o.name] = o.id
		}
		delete(whole, "")
		family := familyOf(hyphens)
		switch {
		case whole[hyphens] != Other && hyphens == plain:
			want = whole[hyphens]
		case whole[hyphens] != Other:
			want = Misspelt
		case family != Other && familyOf(plain) == family:
			want = family
		case family != Other:
			want = Misspelt
		}
		if got := Lookup([]byte(name)); got != want {
			t.Errorf("%q is %d and not %d", name, got, want)
		}
	})
}

// asciiLower changes only A to Z, unlike strings.ToLower.
func asciiLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		b[i] = lower(c)
	}
	return string(b)
}

func TestTokens(t *testing.T) {
	f := func(list string, want ...string) {
		t.Helper()
		var got []string
		EachToken([]byte(list), func(token []byte) { got = append(got, string(token)) })
		if !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", list, got, want)
		}
		for _, token := range want {
			if !HasToken([]byte(list), asciiLower(token)) {
				t.Errorf("%q has no %q", list, token)
			}
		}
		if HasToken([]byte(list), "") || HasToken([]byte(list), "absent") {
			t.Errorf("%q has what it has not", list)
		}
	}
	f("")
	f(",")
	f(" , \t,")
	f("a", "a")
	f("a,b", "a", "b")
	f(" Close ,\tkeep-alive\t, ,x y,", "Close", "keep-alive", "x y")
	f("a;q=1, \"b,c\"", "a;q=1", "\"b", "c\"") // no list that weir reads has quoted strings
}

func TestEqualFold(t *testing.T) {
	f := func(b, lowered string, want bool) {
		t.Helper()
		if got := EqualFold([]byte(b), lowered); got != want {
			t.Errorf("%q and %q: %v", b, lowered, got)
		}
	}
	f("", "", true)
	f("Close", "close", true)
	f("CLOSE", "close", true)
	f("close", "closed", false)
	f("closed", "close", false)
	f("\x01lose", "close", false)
	f("chun\u212aed", "chunked", false) // the Kelvin sign folds to k in Unicode
	f("[", "{", false)
	f("@", "`", false)
}

func TestTrimSpace(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := string(TrimSpace([]byte(in))); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	f("", "")
	f(" \t ", "")
	f("a", "a")
	f("\t a b \t", "a b")
	f("\ra\n", "\ra\n")
	f("\u00a0a", "\u00a0a")
}
