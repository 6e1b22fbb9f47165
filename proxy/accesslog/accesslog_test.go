package accesslog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/listener/header"
	"github.com/weirproxy/weir/proxy/message"
)

// request returns a request with these HTTP headers, each as "name: value".
func request(method, target, host string, fields ...string) *message.Request {
	q := new(message.Request)
	q.Reset()
	q.Method, q.Target, q.Host = q.StoreString(method), q.StoreString(target), q.StoreString(host)
	path, _, _ := strings.Cut(target, "?")
	_, at := q.Load(nil)
	start := at - len(target) - len(host)
	q.Path = q.Range(start, start+len(path))
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		q.AddField(name, value)
	}
	return q
}

var noon = time.Date(2026, 11, 25, 12, 30, 45, 123456789, time.UTC)

// sampleRecord returns a request with most of its fields.
func sampleRecord() *Record {
	return &Record{Kind: "http", Ended: noon, Listener: "web", Origin: &conn.Origin{Client: netip.MustParseAddrPort("192.0.2.1:4711"),
		Peer: netip.MustParseAddrPort("10.0.0.9:33000"), Header: &header.Header{Version: 2}},
		Route: "shop", Backend: "app", Endpoint: "10.1.0.4:8080", Attempts: 2, Started: noon.Add(-1500 * time.Microsecond), Duration: 1500 * time.Microsecond,
		Connect: 300 * time.Microsecond, ResponseHead: 1200 * time.Microsecond, Received: 210, Sent: 5120,
		Request: request("GET", "/cart?id=7", "shop.example:443", "User-Agent: curl/8.5.0", "Referer: https://a.example/?token=x", "X-Request-Id: 8f14e45fceea167a5a36dedd4bea2543"),
		Version: "1.1", Status: 200}
}

func lineOf(t testing.TB, c config.AccessLog, r *Record) map[string]any {
	t.Helper()
	line := NewFormat(c).Append(nil, r)
	var e map[string]any
	if err := json.Unmarshal(line, &e); err != nil {
		t.Fatalf("%q is no JSON: %v", line, err)
	}
	return e
}

// The fields of a line come in a fixed order, without empty ones.
func TestJSONLine(t *testing.T) {
	f := func(r *Record, want string) {
		t.Helper()
		if got := string(NewFormat(config.AccessLog{Format: config.LogJSON, Sample: 1, Redact: []string{"token"}}).Append(nil, r)); got != want+"\n" {
			t.Errorf("the line is\n%snot\n%s", got, want)
		}
	}
	f(sampleRecord(), `{"time":"2026-11-25T12:30:45.123456789Z","kind":"http","listener":"web","client":"192.0.2.1:4711","peer":"10.0.0.9:33000",`+
		`"proxy_header":2,"route":"shop","backend":"app","endpoint":"10.1.0.4:8080","method":"GET","host":"shop.example:443","target":"/cart?id=7","http_version":"1.1","user_agent":"curl/8.5.0",`+
		`"referer":"https://a.example/?token=***","request_id":"8f14e45fceea167a5a36dedd4bea2543","status":200,"duration_seconds":0.0015,"connect_seconds":0.0003,"response_head_seconds":0.0012,`+
		`"bytes_in":210,"bytes_out":5120,"retries":1}`)
	f(&Record{Kind: "refused", Ended: noon.In(time.FixedZone("", 3600)), Listener: "web", Reason: "late", Err: errors.New("a \"late\" header\n")},
		`{"time":"2026-11-25T13:30:45.123456789+01:00","kind":"refused","listener":"web","reason":"late","error":"a \"late\" header\n"}`)
	f(&Record{Kind: "refused", Ended: noon, Listener: "web", Reason: "handshake", Result: "no_shared_version", More: 12},
		`{"time":"2026-11-25T12:30:45.123456789Z","kind":"refused","listener":"web","reason":"handshake","tls_result":"no_shared_version","more":12}`)
	f(&Record{Kind: "tunnel", Ended: noon, SNI: "git.example", TLS: &TLS{Version: "TLS 1.3", CipherSuite: "X", Resumed: true, ECH: true, ClientSubject: "CN=a"}, TLSPolicy: "default",
		Offer: &Offer{Versions: []string{"a", "b"}, Protocols: []string{"h2"}, OnlySHA1: true, JA4: "j"},
		Origin: &conn.Origin{Header: &header.Header{Version: 2, Local: true, TLVs: header.TLVs{Authority: "x", ALPN: "h2", UniqueID: []byte{1, 0xab}, Netns: "n", AWSVPCEndpoint: "vpce", AzureLinkID: 7,
			HasGCP: true, GCPPSC: 1 << 63, SSL: &header.SSL{TLS: true, Version: "TLSv1.3", Cipher: "c", CommonName: "cn"}}}}},
		`{"time":"2026-11-25T12:30:45.123456789Z","kind":"tunnel","proxy_header":2,"proxy_local":true,"tlv_authority":"x","tlv_alpn":"h2","tlv_unique_id":"01ab","tlv_netns":"n","tlv_aws_vpc_endpoint":"vpce",`+
			`"tlv_azure_link_id":7,"tlv_gcp_psc":9223372036854775808,"tlv_ssl":true,"tlv_ssl_verified":false,"tlv_ssl_version":"TLSv1.3","tlv_ssl_cipher":"c","tlv_ssl_cn":"cn","sni":"git.example","tls_policy":"default",`+
			`"tls_offered_versions":["a","b"],"tls_offered_suites":[],"tls_offered_alpn":["h2"],"tls_only_sha1":true,"ja4":"j","tls_version":"TLS 1.3","tls_cipher_suite":"X","tls_resumed":true,"tls_ech":true,"tls_client_subject":"CN=a",`+
			`"duration_seconds":0,"bytes_in":0,"bytes_out":0,"retries":0}`)
}

func TestClientFields(t *testing.T) {
	f := func(r *Record, client, address string, port, sender any) {
		t.Helper()
		c := config.AccessLog{Format: config.LogJSON, Sample: 1}
		if e := lineOf(t, c, r); e["client_address"] != nil || e["client_port"] != nil {
			t.Errorf("the usual line has the client twice: %v", e)
		}
		c.Fields = []config.LogField{config.DefaultFields, "client_address", "client_port"}
		e := lineOf(t, c, r)
		if e["client"] != client || e["client_address"] != address || fmt.Sprint(e["client_port"]) != fmt.Sprint(port) || e["sender"] != sender {
			t.Errorf("the line is %v", e)
		}
	}
	from := func(client string) *Record {
		return &Record{Kind: "http", Origin: &conn.Origin{Client: netip.MustParseAddrPort(client)}}
	}
	f(from("192.0.2.1:4711"), "192.0.2.1:4711", "192.0.2.1", 4711, nil)
	f(from("[2001:db8::1]:4711"), "[2001:db8::1]:4711", "2001:db8::1", 4711, nil)
	f(from("[::ffff:192.0.2.1]:4711"), "[::ffff:192.0.2.1]:4711", "::ffff:192.0.2.1", 4711, nil)
	f(from("192.0.2.1:0"), "192.0.2.1:0", "192.0.2.1", nil, nil)
	for _, text := range []string{"192.0.2.1", "2001:db8::1"} { // without a port, as in X-Forwarded-For
		r := from("192.0.2.9:1")
		r.Client = netip.AddrPortFrom(netip.MustParseAddr(text), 0)
		f(r, text, text, nil, "192.0.2.9:1")
	}
	r := from("192.0.2.9:1")
	r.Client = r.Origin.Client
	f(r, "192.0.2.9:1", "192.0.2.9", 1, nil)
}

// The peer is missing if it is the client, unless the configuration names the field.
func TestPeerField(t *testing.T) {
	const at = "192.0.2.1:4711"
	client := netip.MustParseAddrPort(at)
	f := func(o *conn.Origin, fields []config.LogField, want any) {
		t.Helper()
		if got := lineOf(t, config.AccessLog{Format: config.LogJSON, Sample: 1, Fields: fields}, &Record{Kind: "http", Origin: o})["peer"]; got != want {
			t.Errorf("the peer is %v, not %v", got, want)
		}
	}
	f(&conn.Origin{Client: client, Peer: client}, nil, nil)
	f(&conn.Origin{Client: client, Peer: client}, []config.LogField{config.DefaultFields, "peer"}, at)
	f(&conn.Origin{Client: netip.MustParseAddrPort("192.0.2.9:1"), Peer: client}, nil, at)
	f(&conn.Origin{Peer: client}, nil, at)
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0", 1: "0.000000001", time.Second: "1", 90*time.Second + time.Millisecond: "90.001", -time.Second: "0", 123456789: "0.123456789"} {
		if got := string(appendSeconds(nil, d)); got != want {
			t.Errorf("%d ns are %q, not %q", d, got, want)
		}
	}
}

// Each byte, at each place of a value, is escaped if it has to be.
func TestEscapes(t *testing.T) {
	for c := range 256 {
		for before := range 10 {
			s := strings.Repeat("x", before) + string([]byte{byte(c)}) + strings.Repeat("y", 10)
			checkEscaped(t, s)
		}
	}
	for _, s := range []string{"", "é", "日本語", "\u0085", "\u2028\u2029", "\xed\xa0\x80", "\xf0\x9f\x98", "😀", "\xff\xfe\"", strings.Repeat("\\", 100), "a\x7fb"} {
		checkEscaped(t, s)
		checkEscaped(t, "01234567"+s+"76543210")
	}
}

func checkEscaped(t testing.TB, s string) {
	t.Helper()
	got := appendEscaped(nil, s)
	if other := appendEscaped([]byte("x"), []byte(s)); string(other[1:]) != string(got) {
		t.Errorf("%q: the bytes become %q, the string becomes %q", s, other[1:], got)
	}
	var back string
	if err := json.Unmarshal([]byte(`"`+string(got)+`"`), &back); err != nil {
		t.Errorf("%q becomes %q: %v", s, got, err)
	}
	if want := strings.ToValidUTF8(s, "\x00"); strings.ReplaceAll(want, "\x00", "") != strings.ReplaceAll(strings.ReplaceAll(back, "\ufffd", ""), "\x00", "") && !strings.Contains(s, "\ufffd") {
		t.Errorf("%q is read as %q", s, back)
	}
	for _, r := range string(got) {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' {
			t.Errorf("%q becomes %q, which has %U", s, got, r)
		}
	}
	if !utf8.Valid(got) {
		t.Errorf("%q becomes %q, which is not UTF-8", s, got)
	}
}

// No value that a client or an endpoint chooses breaks the line.
func FuzzLine(f *testing.F) {
	f.Add("GET", "/?token=a&b", "a.example", "curl", "https://a/?token=x", "user", "reason")
	f.Add("\n", "\"", "\\", "\xff", "\x00", "\u2028", "é")
	f.Fuzz(func(t *testing.T, method, target, host, agent, referer, user, cause string) {
		r := sampleRecord()
		r.Request = request(method, target, host, "User-Agent: "+agent, "Referer: "+referer, "X-Request-Id: "+cause, "traceparent: "+cause)
		r.User, r.SNI, r.Err = user, host, errors.New(cause)
		r.Origin.Header.TLVs = header.TLVs{Authority: host, ALPN: cause, Netns: user, SSL: &header.SSL{CommonName: agent}}
		r.TLS, r.Offer = &TLS{ClientSubject: agent}, &Offer{Protocols: []string{cause}}
		line := NewFormat(config.AccessLog{Format: config.LogJSON, Sample: 1, Redact: []string{"token"}}).Append(nil, r)
		if bytes.Count(line, newline) != 1 || line[len(line)-1] != '\n' {
			t.Fatalf("%q has another number of lines than one", line)
		}
		d := json.NewDecoder(bytes.NewReader(line))
		seen := map[string]bool{}
		if _, err := d.Token(); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for d.More() {
			key, err := d.Token()
			var value any
			if err2 := d.Decode(&value); err != nil || err2 != nil {
				t.Fatalf("%q is no JSON: %v, %v", line, err, err2)
			}
			if seen[key.(string)] {
				t.Fatalf("%q has %s twice", line, key)
			}
			seen[key.(string)] = true
		}
	})
}

func TestGoodRecords(t *testing.T) {
	f := func(r Record, want bool) {
		t.Helper()
		if r.Good() != want {
			t.Errorf("%+v is good: %t", r, !want)
		}
	}
	f(Record{Kind: "http", Status: 200}, true)
	f(Record{Kind: "http", Status: 304}, true)
	f(Record{Kind: "http", Status: 399}, true)
	f(Record{Kind: "http", Status: 400}, false)
	f(Record{Kind: "http", Status: 200, Reason: "client_gone"}, false)
	f(Record{Kind: "tunnel"}, false)
	f(Record{Kind: "upgrade", Status: 101}, false)
}

func BenchmarkLine(b *testing.B) {
	f, r := NewFormat(config.AccessLog{Format: config.LogJSON, Sample: 1}), sampleRecord()
	out := make([]byte, 0, 4096)
	l := line{share: 1}
	for b.Loop() {
		l.b = out[:0]
		f.append(&l, r)
	}
}
