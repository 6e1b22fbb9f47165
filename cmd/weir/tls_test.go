package main

import (
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

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
func exampleClients() tlsClients {
	noVersion := seenLine("", "TLS 1.0", "", 12, "203.0.113.0/24")
	noVersion.Policy, noVersion.Host, noVersion.Result = "default", "www.example.org", policy.ResultNoCommonVersion
	check := policy.SeenClients{Listener: "websecure", Result: policy.ResultClientClosed, Network: "10.0.0.0/24", Count: 5000, Last: reportTime}
	sha1 := seenLine("TLS 1.2", "TLS 1.2", ecdheAES, 7, "198.51.100.0/24")
	sha1.OnlySHA1 = true
	return tlsClients{Version: "v1", Node: "edge-1", ConfigHash: "0123456789abcdef",
		Policies: []tlsPolicy{
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
	if err := newTLSReport([]tlsClients{exampleClients()}, reportTime).print(&out, false); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join("testdata", "tls-report.txt"))
	if err != nil || out.String() != string(want) {
		t.Errorf("the report is\n%s\nwant what testdata/tls-report.txt has (%v)", out.String(), err)
	}
}

// The report answers whether each change is possible.
func TestReportAnswers(t *testing.T) {
	report := func(change func(*tlsClients)) *tlsReport {
		c := exampleClients()
		change(&c)
		return newTLSReport([]tlsClients{c}, reportTime)
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
	only := func(lines ...policy.SeenClients) func(*tlsClients) {
		return func(c *tlsClients) { c.Clients = lines }
	}
	r := report(func(*tlsClients) {})
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
	f("a bounded policy", report(func(c *tlsClients) { c.Policies[1].MaxVersion = "TLS 1.2" }), `min_version: "1.3"?`, "")
}

func TestReportOfSeveralNodes(t *testing.T) {
	a, b := exampleClients(), exampleClients()
	b.Node, b.Since, b.ConfigHash = "edge-2", reportTime.Add(-time.Hour), "other"
	b.Evicted, b.EvictedFailed = 4, 5
	b.Clients = append(b.Clients, seenLine("TLS 1.0", "TLS 1.0", tripleDES, 1, "203.0.113.0/24"))
	r := newTLSReport([]tlsClients{a, b}, reportTime)
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

const retiring = `
listeners: {websecure: {address: '@tls', protocol: tls}}
certificates: [{self_signed: {hosts: ["*.example.org"]}}]
tls_policies:
  partners: {min_version: "1.0", cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_RSA_WITH_3DES_EDE_CBC_SHA]}
routes:
  - {name: edi, listeners: [websecure], hosts: [edi.example.org], tls_policy: partners, backend: app}
  - {name: www, listeners: [websecure], hosts: [www.example.org], backend: app}
backends: {app: {endpoints: ['127.0.0.1:1']}}
admin: {address: '@admin'}
`

// If no policy could help a client, the report names its suites after its newest version.
func TestReportNamesMissingSuites(t *testing.T) {
	c := exampleClients()
	line := c.Clients[5]
	line.Result, line.OnlyMissing = policy.ResultNoCommonSuite, []string{"DHE", "CAMELLIA"}
	other := line
	other.OnlyMissing = nil
	c.Clients = append(c.Clients, line, other)
	r := newTLSReport([]tlsClients{c, c}, reportTime)
	var out strings.Builder
	if err := r.print(&out, false); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "    TLS 1.0, only DHE and CAMELLIA  24 "); got != 1 {
		t.Errorf("%d lines:\n%s", got, out.String())
	}
}

// From the handshake of a client to the report for an operator.
func TestReportOfARunningWeir(t *testing.T) {
	r := newRunning(t, retiring, "tls", "admin")
	shake := func(host string, version uint16, suites ...uint16) {
		t.Helper()
		d := &net.Dialer{Timeout: patience}
		c, err := tls.DialWithDialer(d, "tcp", r.address("tls"), &tls.Config{ServerName: host, InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS10, MaxVersion: version, CipherSuites: suites})
		if err == nil {
			c.Close()
		}
	}
	shake("edi.example.org", tls.VersionTLS13)
	shake("edi.example.org", tls.VersionTLS12)
	shake("edi.example.org", tls.VersionTLS10, tls.TLS_RSA_WITH_3DES_EDE_CBC_SHA)
	shake("www.example.org", tls.VersionTLS11)
	f := func(args string, wants ...string) {
		t.Helper()
		eventually(t, "weir tls report "+args, func() error {
			out, err, status := weir(append([]string{"tls", "report", r.address("admin")}, strings.Fields(args)...)...)
			if status != 0 {
				return fmt.Errorf("status %d: %s", status, err)
			}
			for _, want := range wants {
				if !strings.Contains(out, want) {
					return fmt.Errorf("no %q in\n%s", want, out)
				}
			}
			return nil
		})
	}
	f("", "POLICY partners (TLS 1.0 to 1.3, 1 old suite)", "edi.example.org on websecure (route edi): 3 handshakes, 2 below TLS 1.3",
		`no, it would refuse 1 of 3 handshakes (33.3 %): 1 network, 1 fingerprint`, "127.0.0.0/24", "no_common_version", "TLS 1.1")
	f("--policy default", "POLICY default", "No handshake succeeded", "no_common_version")
	f("--json", `"breaks": 1`, `"result": "no_common_version"`)

	out, _, _ := weir("tls", "report", "--json", "http://"+r.address("admin")+"/")
	var report tlsReport
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Policies) != 2 || report.Policies[0].Changes[1].Breaks != 1 {
		t.Errorf("the JSON is %s, %v", out, err)
	}
	r.load(strings.ReplaceAll(retiring, "name: edi", "name: edi2")) // after a reload as well
	f("", "(route edi2): 3 handshakes")
}

// Clients without SNI have no host. If the listener has a route without hosts, it is theirs.
func TestReportOfClientsWithoutSNI(t *testing.T) {
	r := newRunning(t, retiring, "tls", "admin")
	shake := func(host string, version uint16) {
		t.Helper()
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: patience}, "tcp", r.address("tls"), &tls.Config{ServerName: host, InsecureSkipVerify: true,
			MinVersion: tls.VersionTLS10, MaxVersion: version})
		if err == nil {
			c.Close()
		}
	}
	f := func(wants ...string) {
		t.Helper()
		eventually(t, "weir tls report", func() error {
			out, err, status := weir("tls", "report", r.address("admin"))
			for _, want := range wants {
				if status != 0 || !regexp.MustCompile(want).MatchString(out) {
					return fmt.Errorf("no %q in\n%s%s", want, out, err)
				}
			}
			return nil
		})
	}
	shake("", tls.VersionTLS12)
	shake("", tls.VersionTLS10) // the handshake fails
	f(`\n  \(no SNI\) on websecure \(no route without hosts\): 1 handshake, 1 below`, `\n    1\.3  .* \(no SNI\)  t12i`, `\n    TLS 1\.0  .* \(no SNI\)  t10i`)
	shake("x.example.org", tls.VersionTLS12)
	f(`\n  \(no SNI, or unknown host\) on websecure \(no route without hosts\): 2 handshakes`, `\n    1\.3  .* \(unknown host\)  t12d`)
	r.load(strings.Replace(retiring, "routes:\n", "routes:\n  - {name: rest, listeners: [websecure], backend: app}\n", 1))
	shake("", tls.VersionTLS12)
	f(`\n  \(no SNI, or unknown host\) on websecure \(route rest\): 2 handshakes`, `\n  \* on websecure \(route rest\): 1 handshake,`,
		`(?s)\n    1\.3 [^\n]* \(no SNI\)  *t12i.*\n    1\.3 [^\n]* \(no SNI\)  *t12i`)
}

// A panic in a connection is logged once, with its stack, and counted.
func TestPanicsAreLogged(t *testing.T) {
	r := newRunning(t, retiring, "tls", "admin")
	r.proxy.Panicked("websecure", "a fault", []byte("a stack"))
	lines := r.lines.FilterMessage(panicLine).All()
	if len(lines) != 1 || lines[0].ContextMap()["panic"] != "a fault" || lines[0].ContextMap()["stack"] != "a stack" {
		t.Errorf("logged is %v", lines)
	}
	eventually(t, "it is counted", func() error {
		families, err := r.registry.Gather()
		for _, f := range families {
			if f.GetName() == "weir_panics_total" && f.GetMetric()[0].GetCounter().GetValue() == 1 {
				return err
			}
		}
		return fmt.Errorf("it is not: %v", err)
	})
}
