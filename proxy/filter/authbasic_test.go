package filter

import (
	"encoding/base64"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// Both passwords are secret.
const usersFile = "ada:$2y$04$n2H323OnMgUPbatyCwO66OkHq8IwwMITU8ZszuhvfwtsevDosl97a\nbob:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"

func newStaff(t *testing.T, text string) *basic {
	t.Helper()
	b, err := newBasic(config.BasicAuth{File: "users", Realm: "Staff"}, []byte(text), newChecks(mostWaitingPasswords, mostPasswordsOfNetwork))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func encoded(pair string) string { return base64.StdEncoding.EncodeToString([]byte(pair)) }

func withAuthorization(values ...string) *exchange {
	x := newExchange("GET", "/")
	x.client = netip.MustParseAddrPort("192.0.2.1:1")
	for _, v := range values {
		x.req.AddField("Authorization", v)
	}
	return x
}

// RFC 7617: the scheme, malformed credentials, and colons in passwords.
func TestBasic(t *testing.T) {
	b := newStaff(t, usersFile+"colon:{SHA}3OptnM09ILoVSfbZtd3mB0IViII=\n"+ // a:b
		"control:{SHA}OU29/4AQvu5fE5KjJY//Fff68Yw=\n") // a and the byte 1
	f := func(want string, values ...string) {
		t.Helper()
		for range 2 { // the second time from the cache
			x := withAuthorization(values...)
			got := ""
			if id := b.authenticate(x); id != nil {
				got = id.User + " " + id.Fields[0].Name + "=" + id.Fields[0].Value
			} else {
				got = strings.Join(strings.Fields(x.answer)[:2], " ")
				if x.cause == nil {
					t.Errorf("%q: the access log does not say why", values)
				}
				if h := string(x.res.Get(message.WWWAuthenticate)); h != `Basic realm="Staff", charset="UTF-8"` {
					t.Errorf("%q: the challenge is %q", values, h)
				}
			}
			if got != want {
				t.Errorf("%q: %s, want %s", values, got, want)
			}
		}
	}
	const ada = "ada X-Forwarded-User=ada"
	f("401 auth_required")
	f(ada, "Basic "+encoded("ada:secret"))
	f(ada, "bAsIc   "+encoded("ada:secret"))
	f("bob X-Forwarded-User=bob", "BASIC "+encoded("bob:secret"))
	f("colon X-Forwarded-User=colon", "Basic "+encoded("colon:a:b"))
	f("401 auth_failed", "Basic "+encoded("ada:wrong"))
	f("401 auth_failed", "Basic "+encoded("eve:secret"))
	f("401 auth_failed", "Basic "+encoded("adasecret"))
	f("401 auth_failed", "Basic "+encoded(":secret"))
	f("401 auth_failed", "Basic "+encoded("ada:secret\n"))
	f("401 auth_failed", "Basic "+encoded("control:a\x01"))
	f("401 auth_failed", "Basic !!!")
	f("401 auth_failed", "Basic "+strings.TrimRight(encoded("ada:secret"), "="))
	f("401 auth_required", "Basic")
	f("401 auth_required", "Bearer abc")
	f("401 auth_required", "Basic"+encoded("ada:secret"))
	f("401 auth_required", "Basic "+strings.Repeat("a", mostCredentials+1))
	f("401 auth_required", "Basic "+encoded("ada:secret"), "Basic "+encoded("ada:wrong"))
}

// A correct password is hashed once for each revision of the file.
func TestKnownCredentials(t *testing.T) {
	b := newStaff(t, usersFile)
	x := withAuthorization("Basic " + encoded("ada:secret"))
	first := b.authenticate(x)
	b.users = nil // a further check would panic
	if again := b.authenticate(x); first == nil || again != first {
		t.Fatalf("%v, then %v", first, again)
	}
	if n := testing.AllocsPerRun(100, func() { b.authenticate(x) }); n > 0 {
		t.Errorf("a known user takes %v allocations", n)
	}
	next, err := b.reread([]byte(strings.Replace(usersFile, "ada:", "eve:", 1)))
	if err != nil || next.authenticate(x) != nil {
		t.Errorf("a removed user is still known: %v", err)
	}
	if same, err := b.reread([]byte(usersFile)); err != nil || same != authenticator(b) {
		t.Errorf("the same file is another revision: %v", err)
	}
}

// The hashes of credentials have a key of their own in each revision, so nobody can compute them.
func TestKnownCredentialsAreKeyed(t *testing.T) {
	a, b := newStaff(t, usersFile), newStaff(t, usersFile)
	if a.known.digest([]byte("x")) == b.known.digest([]byte("x")) {
		t.Error("two revisions have the same hash")
	}
}

// The memory of known credentials is bounded, and new credentials find a place.
func TestKnownCredentialsAreBounded(t *testing.T) {
	var k knownCredentials
	id := new(Identity)
	for i := range 3 * knownSets * knownWays {
		sum := k.digest([]byte{byte(i), byte(i >> 8), byte(i >> 16)})
		if k.add(sum, id, time.Time{}); k.get(sum) != id {
			t.Fatalf("credentials %d are not known", i)
		}
	}
}

// Entries outlive configurations, broken files change nothing, and a changed file takes effect.
func TestSharedAuth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := func(realm string) *config.Config {
		return &config.Config{Auth: []config.Auth{{Name: "staff", Basic: &config.BasicAuth{File: file, Realm: realm}}}}
	}
	var s Shared
	apply := func(c *config.Config) *Chain {
		t.Helper()
		p, err := s.Plan(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		chain := Compile(&config.Route{Backend: "b", Auth: "staff"}, p)
		p.Commit()
		return chain
	}
	if _, err := s.Plan(cfg("a"), nil); err == nil || !strings.Contains(err.Error(), "auth.staff") {
		t.Fatalf("a missing file: %v", err)
	}
	write(usersFile)
	first := cfg("a")
	chain := apply(first)
	f := func(want string) {
		t.Helper()
		x := withAuthorization("Basic " + encoded("ada:secret"))
		if chain.Answer(x); !strings.HasPrefix(x.answer, want) || want == "" && x.user != "ada" {
			t.Errorf("%q, the user %q, want %q", x.answer, x.user, want)
		}
	}
	f("")
	write("broken")
	if changed, err := s.Reload(); len(changed) > 0 || err == nil || !s.InUse(file) {
		t.Errorf("a broken file: changed %q, %v", changed, err)
	}
	apply(cfg("b"))
	f("")
	write(strings.Replace(usersFile, "ada:", "eve:", 1))
	if changed, err := s.Reload(); len(changed) != 1 || err != nil {
		t.Errorf("a changed file: changed %q, %v", changed, err)
	}
	f("401 auth_failed")
	write(usersFile)
	second := cfg("b")
	apply(second)
	f("")
	write("x:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=")
	apply(second) // objects of a cluster changed: no file is read
	f("")
	p, err := s.Plan(new(config.Config), nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	if s.InUse(file) {
		t.Error("a removed file is in use")
	}
	f("") // a request that still runs
}

// No Authorization makes the filter panic, and only the right one lets a request pass.
func FuzzBasic(f *testing.F) {
	b, err := newBasic(config.BasicAuth{Realm: "a"}, []byte("bob:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"), newChecks(mostWaitingPasswords, mostPasswordsOfNetwork))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("Basic " + encoded("bob:secret"))
	f.Add("Basic " + encoded("bob:wrong"))
	f.Add("basic \t=")
	f.Fuzz(func(t *testing.T, value string) {
		id := b.authenticate(withAuthorization(value))
		_, credentials, _ := strings.Cut(value, " ")
		pair, _ := base64.StdEncoding.DecodeString(strings.TrimLeft(credentials, " "))
		if (id != nil) != (string(pair) == "bob:secret" && len(value) > 6 && strings.EqualFold(value[:6], "basic ")) && id != nil {
			t.Errorf("%q is %v", value, id)
		}
	})
}

// Users of an object of a cluster: endpoints do not learn the user, and a password that weir cannot
// check refuses its user only. An entry remembers passwords while its users stay the same.
func TestBasicOfObject(t *testing.T) {
	var s Shared
	apply := func(users, realm string) *Chain {
		t.Helper()
		p, err := s.Plan(&config.Config{Auth: []config.Auth{{Name: "shop/users", Basic: &config.BasicAuth{Object: "Secret shop/users", Realm: realm, Users: config.Secret(users)}}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		chain := Compile(&config.Route{Backend: "b", Auth: "shop/users"}, p)
		p.Commit()
		return chain
	}
	chain := apply("eve:abJnggxhB/yWI\n"+usersFile, "a")
	f := func(pair, want string) {
		t.Helper()
		x := withAuthorization("Basic " + encoded(pair))
		if chain.Answer(x); !strings.HasPrefix(x.answer, want) || want == "" && x.answer != "" {
			t.Errorf("%s: %q, want %q", pair, x.answer, want)
		}
		if id := x.identity; want == "" && (x.user != "ada" || len(id.Fields) > 0) {
			t.Errorf("%s: the user is %q, and endpoints get %+v", pair, x.user, id)
		}
	}
	f("ada:secret", "")
	f("ada:Secret", "401 auth_failed")
	f("eve:secret", "401 auth_failed")
	before := s.auth["shop/users"].authenticator().(*basic)
	x := newExchange("GET", "/")
	if chain.Answer(x); string(x.res.Get(message.WWWAuthenticate)) != `Basic realm="a"` {
		t.Errorf("the challenge is %q", x.res.Get(message.WWWAuthenticate))
	}
	apply("eve:abJnggxhB/yWI\n"+usersFile, "b")
	if after := s.auth["shop/users"].authenticator().(*basic); after.revision != before.revision || after.settings.Realm != "b" {
		t.Error("another realm forgets the passwords")
	}
	apply("eve:abJnggxhB/yWI\n", "b")
	f("ada:secret", "401 auth_failed")
	if changed, err := s.Reload(); len(changed) > 0 || err != nil {
		t.Errorf("there is a file: %q, %v", changed, err)
	}
}
