package main

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/cmd/weir/node"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/tls/policy"
)

const (
	tripleDES = "TLS_RSA_WITH_3DES_EDE_CBC_SHA"
	rsaAES    = "TLS_RSA_WITH_AES_128_CBC_SHA"
	rsaAES256 = "TLS_RSA_WITH_AES_256_CBC_SHA"
	rsaGCM    = "TLS_RSA_WITH_AES_128_GCM_SHA256"
	ecdheAES  = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"
	ecdheGCM  = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
)

var reportTime = time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC)

// seenLine is a line of the table about clients whose handshake succeeded.
func seenLine(version, newest, suite string, n uint64, network string, offered ...string) policy.SeenClients {
	return policy.SeenClients{Listener: "websecure", Host: "edi.example.org", Policy: "partners", Result: policy.ResultOK, Version: version,
		Newest: newest, Suite: suite, Suites: append(offered, suite), JA4: "t" + newest[4:5] + newest[6:] + "d0404h1_aaaaaaaaaaaa_bbbbbbbbbbbb", Network: network,
		Count: n, First: reportTime.Add(-100 * time.Hour), Last: reportTime.Add(-2 * time.Hour)}
}

// exampleClients is an example of the clients of a node in three weeks.
func exampleClients() node.TLSClients {
	noVersion := seenLine("", "TLS 1.0", "", 12, "203.0.113.0/24")
	noVersion.Policy, noVersion.Host, noVersion.Result = "default", "www.example.org", policy.ResultNoCommonVersion
	check := policy.SeenClients{Listener: "websecure", Result: policy.ResultClientClosed, Network: "10.0.0.0/24", Count: 5000, Last: reportTime}
	sha1 := seenLine("TLS 1.2", "TLS 1.2", ecdheAES, 7, "198.51.100.0/24")
	sha1.OnlySHA1 = true
	return node.TLSClients{Version: "v1", Node: "edge-1", ConfigHash: "0123456789abcdef",
		Policies: []node.TLSPolicy{
			{Name: "default", MinVersion: "TLS 1.2", MaxVersion: "TLS 1.3", CipherSuites: []string{ecdheGCM}},
			{Name: "partners", MinVersion: "TLS 1.0", MaxVersion: "TLS 1.3", SHA1: true,
				CipherSuites: []string{ecdheGCM, ecdheAES, rsaGCM, rsaAES, rsaAES256, tripleDES, "TLS_RSA_WITH_RC4_128_SHA"}},
			{Name: "unused", MinVersion: "TLS 1.2", MaxVersion: "TLS 1.2", CipherSuites: []string{ecdheGCM}},
		},
		Hosts: []proxy.HostRoutes{{Listener: "websecure", Host: "edi.example.org", Policy: "partners", Routes: []string{"edi", "edi-upload"}},
			{Listener: "websecure", Host: "www.example.org", Policy: "default", Routes: []string{"www"}}},
		Seen: policy.Seen{Since: reportTime.Add(-21 * 24 * time.Hour),
			Modern: []policy.ModernClients{{Listener: "websecure", Host: "edi.example.org", Policy: "partners", Count: 9000, Last: reportTime},
				{Listener: "websecure", Host: "www.example.org", Policy: "default", Count: 100000, Last: reportTime}},
			Clients: []policy.SeenClients{
				seenLine("TLS 1.0", "TLS 1.0", tripleDES, 3, "198.51.100.0/24"),
				seenLine("TLS 1.2", "TLS 1.2", rsaAES, 40, "192.0.2.0/24", rsaAES256),
				seenLine("TLS 1.2", "TLS 1.2", rsaGCM, 20, "2001:db8:7::/48"),
				seenLine("TLS 1.2", "TLS 1.2", ecdheGCM, 930, "192.0.2.0/24"),
				sha1, noVersion, check,
			}}}
}

func TestReportForAPerson(t *testing.T) {
	var out strings.Builder
	if err := newTLSReport([]node.TLSClients{exampleClients()}, reportTime).print(&out, false); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join("testdata", "tls-report.txt"))
	if err != nil || out.String() != string(want) {
		t.Errorf("the report is\n%s\nwant what testdata/tls-report.txt has (%v)", out.String(), err)
	}
}

// The report answers whether each change is possible.
func TestReportAnswers(t *testing.T) {
	report := func(change func(*node.TLSClients)) *tlsReport {
		c := exampleClients()
		change(&c)
		return newTLSReport([]node.TLSClients{c}, reportTime)
	}
	f := func(what string, r *tlsReport, question, want string) {
		t.Helper()
		for _, p := range r.Policies {
			for _, c := range p.Changes {
				if p.Name == "partners" && c.question() == question {
					if got := c.answer(p.Handshakes); !strings.HasPrefix(got, want) {
						t.Errorf("%s: %s %s, want %s", what, question, got, want)
					}
					return
				}
			}
		}
		if want != "" {
			t.Errorf("%s: nobody asks %s", what, question)
		}
	}
	only := func(lines ...policy.SeenClients) func(*node.TLSClients) {
		return func(c *node.TLSClients) { c.Clients = lines }
	}
	r := report(func(*node.TLSClients) {})
	f("example", r, `min_version: "1.1"?`, "no, it would refuse 3 of 10000 handshakes (under 0.1 %): 1 network, 1 fingerprint, last seen 2026-11-20 07:30 UTC")
	f("example", r, `min_version: "1.3"?`, "no, it would refuse 1000 of 10000 handshakes (10.0 %): 3 networks, 2 fingerprints")
	f("example", r, "without "+rsaAES+"?", "yes, no client would be refused; 40 handshakes would use something else")
	f("example", r, "without "+rsaGCM+"?", "no, it would refuse 20 of")
	f("example", r, "without sha1_signatures?", "no, it would refuse 7 of")

	// A client that supports a newer version than the policy allowed is not rejected.
	r = report(only(seenLine("TLS 1.1", "TLS 1.2", rsaAES, 5, "")))
	f("able", r, `min_version: "1.2"?`, "yes, no client would be refused; 5 handshakes would use something else")
	f("able", r, `min_version: "1.3"?`, "no, it would refuse 5 of 9005")
	r = report(only())
	f("modern alone", r, `min_version: "1.3"?`, "yes, no client would be refused")
	f("modern alone", r, "without 5 suites (*)?", "yes, no client used them")
	// Suites of TLS 1.2 do not help clients that have only 1.0; suites with another key
	// exchange do not help either.
	f("suites", report(only(seenLine("TLS 1.0", "TLS 1.0", rsaAES, 5, "", rsaGCM, ecdheAES))), "without "+rsaAES+"?", "no, it would refuse 5")
	f("suites", report(only(seenLine("TLS 1.2", "TLS 1.2", rsaAES, 5, "", rsaGCM))), "without "+rsaAES+"?", "yes")
	f("a suite the policy does not have", report(only(seenLine("TLS 1.2", "TLS 1.2", rsaAES, 5, "", "TLS_RSA_WITH_AES_256_GCM_SHA384"))), "without "+rsaAES+"?", "no")
	// RSA key exchange needs no signature.
	sha1 := seenLine("TLS 1.2", "TLS 1.2", rsaAES, 5, "")
	sha1.OnlySHA1 = true
	f("no signature", report(only(sha1)), "without sha1_signatures?", "yes")
	f("a bounded policy", report(func(c *node.TLSClients) { c.Policies[1].MaxVersion = "TLS 1.2" }), `min_version: "1.3"?`, "")
}

func TestReportOfSeveralNodes(t *testing.T) {
	a, b := exampleClients(), exampleClients()
	b.Node, b.Since, b.ConfigHash = "edge-2", reportTime.Add(-time.Hour), "other"
	b.Evicted, b.EvictedFailed = 4, 5
	b.Clients = append(b.Clients, seenLine("TLS 1.0", "TLS 1.0", tripleDES, 1, "203.0.113.0/24"))
	r := newTLSReport([]node.TLSClients{a, b}, reportTime)
	p := r.Policies[0]
	if p.Name != "partners" || p.Handshakes != 20001 || p.Versions["TLS 1.0"] != 7 || len(p.Clients) != 6 || !r.Since.Equal(b.Since) {
		t.Errorf("the sum is %+v", p)
	}
	if notes := strings.Join(r.Notes, "\n"); len(r.Notes) != 4 || !strings.Contains(notes, "1 hour only") || !strings.Contains(notes, "those of edge-1") ||
		!strings.Contains(notes, "4 lines") || !strings.Contains(notes, "5 lines") {
		t.Errorf("the notes are %q", r.Notes)
	}
	if err := r.only("partners"); err != nil || len(r.Policies) != 1 || len(r.Failures) != 0 {
		t.Errorf("the report of one policy is %+v, %v", r, err)
	}
	if err := r.only("partner"); err == nil || !strings.Contains(err.Error(), "there are partners") {
		t.Errorf("an unknown policy: %v", err)
	}
}

func TestReportSaysWhatIsWrong(t *testing.T) {
	answer := "not found"
	status := http.StatusNotFound
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	defer other.Close()
	const nobody = "127.0.0.1:1"
	f := func(url, want string) {
		t.Helper()
		out, err, status := weir("tls", "report", url)
		if out != "" || status != statusError || !strings.Contains(err, want) || strings.Contains(err, "\n\n") {
			t.Errorf("weir tls report %s: status %d, printed %q and %q; want %q", url, status, out, err, want)
		}
	}
	f("example", `"example" is not the URL of an admin port; write it as http://127.0.0.1:8087`)
	f("ftp://a:1", "is not the URL")
	f("http://", "is not the URL")
	f("http://a b:1", "is not the URL")
	f(nobody, "cannot query the admin port "+nobody)
	f("http://"+nobody, "compare the address with admin.address")
	f("unix:/nowhere", "cannot query the admin port unix:/nowhere")
	f(other.URL, "it answers 404")
	status = http.StatusOK
	f(other.URL, "not the admin port of a weir: its response")
	secret := httptest.NewUnstartedServer(other.Config.Handler)
	secret.Config.ErrorLog = log.New(io.Discard, "", 0)
	secret.StartTLS()
	defer secret.Close()
	f(strings.Replace(secret.URL, "https", "http", 1), "uses TLS (admin.tls); write its URL with https://")
	f(secret.URL, "use --ca FILE for the CA")
	asking := httptest.NewUnstartedServer(other.Config.Handler)
	asking.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	asking.Config.ErrorLog = secret.Config.ErrorLog
	asking.StartTLS()
	defer asking.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: asking.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err, status := weir("tls", "report", "--ca", ca, asking.URL); status != statusError || !strings.Contains(err, "use --cert FILE and --key FILE for the client certificate") {
		t.Errorf("without a client certificate: status %d, %q", status, err)
	}
	answer = "{}"
	f(other.URL, "not the admin port of a weir: its response")
	if _, err, status := weir("tls", "report", "--colour"); status != statusUsage || !strings.Contains(err, "weir tls report --help") {
		t.Errorf("an unknown flag: status %d, %q", status, err)
	}
	if _, err, status := weir("tls", "reprot"); status != statusUsage || !strings.Contains(err, "reprot") {
		t.Errorf("an unknown command: status %d, %q", status, err)
	}
}

// If no policy could help a client, the report names its suites after its newest version.
func TestReportNamesMissingSuites(t *testing.T) {
	c := exampleClients()
	line := c.Clients[5]
	line.Result, line.OnlyMissing = policy.ResultNoCommonSuite, []string{"DHE", "CAMELLIA"}
	other := line
	other.OnlyMissing = nil
	c.Clients = append(c.Clients, line, other)
	r := newTLSReport([]node.TLSClients{c, c}, reportTime)
	var out strings.Builder
	if err := r.print(&out, false); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "    TLS 1.0, only DHE and CAMELLIA  24 "); got != 1 {
		t.Errorf("%d lines:\n%s", got, out.String())
	}
}
