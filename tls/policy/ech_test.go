package policy

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
)

// newECH makes a new key for cover.example.org. It returns the key file and the list to
// publish.
func newECH(t testing.TB) (file config.ECHKey, list []byte) {
	t.Helper()
	text, list, err := NewECH("cover.example.org")
	if err != nil {
		t.Fatal(err)
	}
	return config.ECHKey{File: "ech.pem", PEM: text}, list
}

func parseECH(t testing.TB, files ...config.ECHKey) []tls.EncryptedClientHelloKey {
	t.Helper()
	keys, err := ParseECH(files)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// echSide is a listener with ECH. a.example.org, b.example.org and the public name have
// their own policies. seen has the names that choose got, one for each handshake.
type echSide struct {
	server *tls.Config
	roots  *x509.CertPool
	seen   []string
}

func newECHSide(t testing.TB, keys []tls.EncryptedClientHelloKey, change func(*config.TLSPolicy)) *echSide {
	t.Helper()
	ca := newAuthority(t, "ca")
	s := &echSide{roots: x509.NewCertPool()}
	s.roots.AddCert(ca.cert)
	policies := make(map[string]*Policy)
	for _, name := range []string{"a.example.org", "b.example.org", "cover.example.org"} {
		p := config.TLSPolicy{Name: name}
		if change != nil {
			change(&p)
		}
		policies[name] = newPolicy(t, p, ca.issue(t, name, false, time.Now().Add(time.Hour)), keyring{}.attach)
		policies[name].RetryECH(keys)
	}
	s.server = Server(func(h *tls.ClientHelloInfo) (*Policy, error) {
		s.seen = append(s.seen, h.ServerName)
		return policies[h.ServerName], nil
	}, keys)
	return s
}

// dial does a handshake for name with the ECHConfigList list. It returns the state of the
// client, and the errors of client and server.
func (s *echSide) dial(t testing.TB, client *tls.Config, name string, list []byte) (state tls.ConnectionState, clientErr, serverErr error) {
	t.Helper()
	client = client.Clone()
	client.ServerName, client.RootCAs, client.EncryptedClientHelloConfigList = name, s.roots, list
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	result := make(chan error, 1)
	accepted := false // the server's view
	go func() {
		nc, err := l.Accept()
		if err != nil {
			result <- err
			return
		}
		defer nc.Close()
		nc.SetDeadline(time.Now().Add(20 * time.Second))
		server := tls.Server(nc, s.server)
		if err = server.Handshake(); err == nil {
			server.Write([]byte("x"))
			accepted = server.ConnectionState().ECHAccepted
		}
		result <- err
	}()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(20 * time.Second))
	c := tls.Client(nc, client)
	if clientErr = c.Handshake(); clientErr == nil {
		_, clientErr = c.Read(make([]byte, 1)) // also reads the tickets
	}
	if state, serverErr = c.ConnectionState(), <-result; serverErr == nil && accepted != state.ECHAccepted {
		t.Errorf("the client says that ECH was accepted: %v; the server: %v", state.ECHAccepted, accepted)
	}
	return state, clientErr, serverErr
}

// The inner name chooses the policy. The outer name chooses nothing.
func TestECH(t *testing.T) {
	file, list := newECH(t)
	s := newECHSide(t, parseECH(t, file), nil)
	state, err, serverErr := s.dial(t, &tls.Config{}, "a.example.org", list)
	if err != nil || serverErr != nil || !state.ECHAccepted {
		t.Fatalf("accepted %v, client %v, server %v", state.ECHAccepted, err, serverErr)
	}
	if want := []string{"a.example.org"}; !slices.Equal(s.seen, want) {
		t.Errorf("choose saw %q, want %q", s.seen, want)
	}
	if got := state.PeerCertificates[0].DNSNames; got[0] != "a.example.org" {
		t.Errorf("the certificate is for %q", got)
	}
}

// If no key decrypts the ClientHello, the policy of the public name applies, and the
// client gets the current keys.
func TestECHThatIsRejected(t *testing.T) {
	now, list := newECH(t)
	before, oldList := newECH(t)
	_, stranger := newECH(t)
	s := newECHSide(t, parseECH(t, now, before), nil)
	state, err, _ := s.dial(t, &tls.Config{}, "a.example.org", stranger)
	var rejected *tls.ECHRejectionError
	if !errors.As(err, &rejected) || state.ECHAccepted {
		t.Fatalf("accepted %v, error %v", state.ECHAccepted, err)
	}
	if want := []string{"cover.example.org"}; !slices.Equal(s.seen, want) {
		t.Errorf("choose saw %q, want %q", s.seen, want)
	}
	if got := state.PeerCertificates[0].DNSNames; got[0] != "cover.example.org" {
		t.Errorf("the certificate is for %q", got)
	}
	if !bytes.Equal(rejected.RetryConfigList, list) {
		t.Errorf("the client is told to try %x, want the newest, %x", rejected.RetryConfigList, list)
	}
	if state, err, _ := s.dial(t, &tls.Config{}, "b.example.org", rejected.RetryConfigList); err != nil || !state.ECHAccepted {
		t.Errorf("tried again: accepted %v, error %v", state.ECHAccepted, err)
	}
	// After a rotation, the previous key still decrypts: DNS caches may have its
	// configuration.
	if state, err, _ := s.dial(t, &tls.Config{}, "a.example.org", oldList); err != nil || !state.ECHAccepted {
		t.Errorf("with the key before: accepted %v, error %v", state.ECHAccepted, err)
	}
	if want := []string{"cover.example.org", "b.example.org", "a.example.org"}; !slices.Equal(s.seen, want) {
		t.Errorf("choose saw %q, want %q", s.seen, want)
	}
}

// The inner and the outer ClientHello may need a HelloRetryRequest for the key exchange.
func TestECHAndHelloRetryRequest(t *testing.T) {
	file, list := newECH(t)
	s := newECHSide(t, parseECH(t, file), func(p *config.TLSPolicy) { p.Curves = []uint16{uint16(tls.CurveP384)} })
	state, err, serverErr := s.dial(t, &tls.Config{}, "a.example.org", list)
	if err != nil || serverErr != nil || !state.ECHAccepted || !state.HelloRetryRequest {
		t.Errorf("accepted %v, retried %v, client %v, server %v", state.ECHAccepted, state.HelloRetryRequest, err, serverErr)
	}
	if want := []string{"a.example.org"}; !slices.Equal(s.seen, want) {
		t.Errorf("choose saw %q, want %q", s.seen, want)
	}
}

// ECH does not work for a host whose policy has TLS 1.2 at most, even if the policy of
// the public name allows TLS 1.3.
func TestECHNeedsTLS13(t *testing.T) {
	file, list := newECH(t)
	s := newECHSide(t, parseECH(t, file), func(p *config.TLSPolicy) {
		if p.Name == "a.example.org" {
			p.MaxVersion = tls.VersionTLS12
		}
	})
	if _, err, serverErr := s.dial(t, &tls.Config{}, "a.example.org", list); err == nil || serverErr == nil {
		t.Errorf("client %v, server %v", err, serverErr)
	}
}

// Sessions stay in their scope, with and without ECH.
func TestECHSessions(t *testing.T) {
	file, list := newECH(t)
	s := newECHSide(t, parseECH(t, file), nil)
	f := func(what string, from, to string, fromList, toList []byte, want bool) {
		t.Helper()
		client := &tls.Config{ClientSessionCache: &anySession{}}
		if _, err, _ := s.dial(t, client, from, fromList); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		state, err, serverErr := s.dial(t, client, to, toList)
		if err != nil || serverErr != nil || state.DidResume != want {
			t.Errorf("%s: resumed %v, want %v; client %v, server %v", what, state.DidResume, want, err, serverErr)
		}
	}
	a, b := "a.example.org", "b.example.org"
	f("the same host", a, a, list, list, true)
	f("another host", a, b, list, list, false)
	f("another host in the open", a, b, list, nil, false)
	f("another host, hidden", a, b, nil, list, false)
	f("from the public name", "cover.example.org", a, nil, list, false)
	f("to the public name", a, "cover.example.org", list, nil, false)
}

func TestParseECH(t *testing.T) {
	file, list := newECH(t)
	other, _ := newECH(t)
	keyBlock, rest := pem.Decode(file.PEM)
	configBlock, _ := pem.Decode(rest)
	otherKey, _ := pem.Decode(other.PEM)
	text := func(blocks ...*pem.Block) (all []byte) {
		for _, b := range blocks {
			all = append(all, pem.EncodeToMemory(b)...)
		}
		return all
	}
	configOf := func(change func([]byte) []byte) *pem.Block {
		return &pem.Block{Type: echConfigBlock, Bytes: change(slices.Clone(list))}
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p256DER, err := x509.MarshalPKCS8PrivateKey(p256)
	if err != nil {
		t.Fatal(err)
	}
	f := func(want string, blocks ...*pem.Block) {
		t.Helper()
		_, err := ParseECH([]config.ECHKey{{File: "/etc/weir/ech.pem", PEM: text(blocks...), Position: config.Position{File: "weir.yaml", Line: 3, Column: 5}}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "/etc/weir/ech.pem") || !strings.HasPrefix(err.Error(), "weir.yaml:3:5: ")) {
			t.Errorf("error %v, want %q with the file and its position", err, want)
		}
	}
	f("", keyBlock, configBlock)
	f("", configBlock, keyBlock)
	f("no PRIVATE KEY")
	f("no PRIVATE KEY", configBlock)
	f("no ECHCONFIG", keyBlock)
	f("two private keys", keyBlock, keyBlock, configBlock)
	f("two ECHCONFIG blocks", keyBlock, configBlock, configBlock)
	f("CERTIFICATE", keyBlock, &pem.Block{Type: "CERTIFICATE"}, configBlock)
	f("was made for another private key", otherKey, configBlock)
	f("PKCS #8", &pem.Block{Type: echKeyBlock, Bytes: []byte("x")}, configBlock)
	f("X25519", &pem.Block{Type: echKeyBlock, Bytes: p256DER}, configBlock)
	f("malformed", keyBlock, configOf(func(l []byte) []byte { return l[:len(l)-1] }))
	f("malformed", keyBlock, configOf(func(l []byte) []byte { return append(l, 0) }))
	f("malformed", keyBlock, configOf(func([]byte) []byte { return nil }))
	f("malformed", keyBlock, configOf(func(l []byte) []byte { return []byte{0, 0} }))
	f("malformed", keyBlock, configOf(func(l []byte) []byte { l[5]++; return l }))
	f("no configuration of RFC 9849", keyBlock, configOf(func(l []byte) []byte { l[3] = 0x0c; return l }))
	f("KEM", keyBlock, configOf(func(l []byte) []byte { l[8]++; return l }))
	f("was made for another private key", keyBlock, configOf(func(l []byte) []byte { l[20]++; return l }))
	f("cipher suite", keyBlock, configOf(func(l []byte) []byte { l[48] = 9; return l })) // the AEAD of the first
	f("public name", keyBlock, configOf(func(l []byte) []byte { return bytes.Replace(l, []byte("cover.ex"), []byte("cov_r.ex"), 1) }))

	// A list may have several configurations, also of other drafts.
	draft := []byte{0xfe, 0x0c, 0, 2, 1, 2}
	entries := append(draft, list[2:]...)
	entries = append(entries, list[2:]...)
	both := config.ECHKey{PEM: text(keyBlock, &pem.Block{Type: echConfigBlock, Bytes: append(binary.BigEndian.AppendUint16(nil, uint16(len(entries))), entries...)})}
	keys := parseECH(t, both, other)
	if len(keys) != 3 || !keys[0].SendAsRetry || !keys[1].SendAsRetry || keys[2].SendAsRetry || !bytes.Equal(keys[0].Config, list[2:]) {
		t.Errorf("parsed are %+v", keys)
	}
	if names := PublicNames(keys); !slices.Equal(names, []string{"cover.example.org", "cover.example.org", "cover.example.org"}) {
		t.Errorf("the public names are %q", names)
	}
}

func TestPublicNames(t *testing.T) {
	f := func(name string, want bool) {
		t.Helper()
		if _, _, err := NewECH(name); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, good := range []string{"cover.example.org", "localhost", "a-b.example", "1.example", "xn--bcher-kva.example", strings.Repeat("a", 63) + ".org", "0xfg"} {
		f(good, true)
	}
	for _, bad := range []string{"", ".", "example.org.", "a..b", "-a.org", "a-.org", "a_b.org", "*.example.org", "a b", "bücher.example",
		"192.0.2.1", "1.0x7f", "example.123", "a.0x", "[::1]", strings.Repeat("a", 64) + ".org", strings.Repeat("a.", 130) + "org"} {
		f(bad, false)
	}
}

// crypto/tls accepts every key file that ParseECH accepts, and some handshake succeeds
// with it.
func FuzzParseECH(f *testing.F) {
	file, list := newECH(f)
	f.Add(file.PEM, list)
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"), []byte{0, 4, 0xfe, 0x0d, 0, 0})
	f.Add([]byte{}, []byte{0, 6, 0xfe, 0x0c, 0, 2, 1, 2})
	key, err := ecdh.X25519().NewPrivateKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		f.Fatal(err)
	}
	own, err := buildECHConfigList("cover.example.org", key.PublicKey().Bytes())
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte("x"), own)
	f.Fuzz(func(t *testing.T, file, list []byte) {
		ParseECH([]config.ECHKey{{File: "x", PEM: file}})
		keys, err := matchECH(key, list, true)
		if err != nil {
			return
		}
		var joined []byte
		for _, k := range keys {
			joined = append(joined, k.Config...)
		}
		// A client of crypto/tls reads the same configurations.
		a, b := net.Pipe()
		go func() {
			b.Read(make([]byte, 1<<14))
			b.Close()
		}()
		client := &tls.Config{ServerName: "a.example.org", EncryptedClientHelloConfigList: append(binary.BigEndian.AppendUint16(nil, uint16(len(joined))), joined...)}
		err = tls.Client(a, client).Handshake()
		if err != nil && strings.Contains(err.Error(), "ECHConfig") && !strings.Contains(err.Error(), "no valid ECHConfigs") {
			t.Errorf("%x was accepted; crypto/tls: %v", list, err)
		}
		a.Close()
	})
}
