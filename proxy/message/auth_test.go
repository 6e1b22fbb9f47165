package message

import (
	"strings"
	"testing"
)

func TestAuthenticatesConnection(t *testing.T) {
	for value, want := range map[string]bool{
		"NTLM TlRMTVNTUAABAAAA": true,
		"ntlm TlRMTVNTUAABAAAA": true,
		"Negotiate YII=":        true,
		"NEGOTIATE":             true,
		"Negotiate\tYII=":       true,
		"NTLM,":                 true,
		"Kerberos YII=":         true,
		"Nego2 YII=":            true,
		"":                      false,
		"Basic bnRsbTpudGxt":    false,
		"Bearer NTLM":           false,
		"NTLMv2 x":              false,
		"Basic x, NTLM y":       false, // credentials are not a list
	} {
		var h Head
		h.AddField("Accept", "NTLM")
		h.AddField("authorization", value)
		if got := h.AuthenticatesConnection(); got != want {
			t.Errorf("%q: %t", value, got)
		}
	}
	var h Head
	h.AddField("Authorization", "Basic x")
	h.AddField("Authorization", "NTLM x")
	if !h.AuthenticatesConnection() {
		t.Error("the second field is not seen")
	}
}

var challenges = map[string]bool{
	"NTLM":                                   true,
	"Negotiate, NTLM":                        true,
	"Negotiate oYG2MIGzoAMKAQGhCwYJKoZIhvc=": true,
	`Basic realm="a, Negotiate", NTLM`:       true,
	`Basic realm="a, Negotiate"`:             false,
	`Basic realm="a\", NTLM"`:                false,
	`Basic realm="a\\", NTLM`:                true,
	`Basic realm = "x" , negotiate`:          true,
	`Digest realm="x", NTLM=1, nonce="y"`:    false,
	`Digest realm="x", ntlm = 1`:             false,
	",, ,NTLM":                               true,
	"Basic,NTLM":                             true,
	`Basic realm="never closed`:              true,
	"Bearer":                                 false,
	"Bearer realm=NTLM":                      false,
	"NTLMX, XNTLM":                           false,
	"":                                       false,
	" , ":                                    false,
	"Basic cmVhbG0=, Bearer a=b":             false,
	"\x80, NTLM":                             true,
}

func TestAsksForConnection(t *testing.T) {
	for value, want := range challenges {
		for _, name := range []string{"WWW-Authenticate", "proxy-authenticate"} {
			var h Head
			h.AddField(name, "Basic realm=x")
			h.AddField(name, value)
			h.Fields[1].Dropped = true // even if it is hop-by-hop: the endpoint sent it
			if got := h.AsksForConnection(); got != want {
				t.Errorf("%s: %q: %t", name, value, got)
			}
		}
	}
	for value, want := range map[string]bool{"true": true, "": true, "false": false, "False": false} {
		var h Head
		h.AddField("Persistent-Auth", value)
		if got := h.AsksForConnection(); got != want {
			t.Errorf("Persistent-Auth: %q: %t", value, got)
		}
	}
}

// AsksForConnection finds a challenge for the connection after any prefix, if a comma that
// separates elements precedes it.
func FuzzChallenges(f *testing.F) {
	for value := range challenges {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		var h Head
		h.AddField("WWW-Authenticate", value)
		alone := h.AsksForConnection()
		h.Reset()
		h.AddField("WWW-Authenticate", "NTLM, "+value)
		if !h.AsksForConnection() {
			t.Errorf("not found before %q", value)
		}
		h.Reset()
		h.AddField("WWW-Authenticate", value+", NTLM")
		if !h.AsksForConnection() {
			t.Errorf("not found behind %q", value) // a list that ends within a string counts, too
		}
		if alone && !strings.ContainsAny(strings.ToLower(value), "\"nk") {
			t.Errorf("found in %q", value)
		}
	})
}
