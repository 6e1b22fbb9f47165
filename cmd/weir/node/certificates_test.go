package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/tls/acme"
	"github.com/weirproxy/weir/tls/storage"
)

// issue writes a certificate for host to NAME.crt and NAME.key; id distinguishes it from
// others.
func issue(t testing.TB, dir, name, host, id string, left time.Duration) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: id}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-90 * 24 * time.Hour), NotAfter: time.Now().Add(left)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	put(t, filepath.Join(dir, name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})))
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// servedAs returns the common name of the certificate that a client of host gets.
func (r *running) servedAs(name, host string) string {
	r.t.Helper()
	c := r.dial(name)
	shaken := tls.Client(c, &tls.Config{ServerName: host, InsecureSkipVerify: true})
	if err := shaken.Handshake(); err != nil {
		return err.Error()
	}
	return shaken.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func (r *running) logged(message string) int { return r.lines.FilterMessage(message).Len() }

// weir puts a good pair of files into effect even if the configuration has errors. A
// broken pair blocks neither a good configuration nor another pair.
func TestCertificateFilesChangeAlone(t *testing.T) {
	dir := t.TempDir()
	const day = 24 * time.Hour
	issue(t, dir, "a", "a.example.org", "a1", 90*day)
	issue(t, dir, "b", "b.example.org", "b1", 90*day)
	text := `
listeners: {secure: {address: '@secure', protocol: tls}}
certificates: [{cert: DIR/a.crt, key: DIR/a.key}, {cert: DIR/b.crt, key: DIR/b.key}]
routes: [{listeners: [secure], hosts: [a.example.org, b.example.org], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
`
	text = strings.ReplaceAll(text, "DIR", dir)
	r := newRunning(t, text, "secure")
	text = strings.NewReplacer(r.words...).Replace(text) + "admin: {address: off}\n"
	r.path = filepath.Join(dir, "weir.yaml")
	reload := func(text string) error {
		put(t, r.path, text)
		return r.reload("a test")
	}
	f := func(wantA, wantB string) {
		t.Helper()
		if a, b := r.servedAs("secure", "a.example.org"), r.servedAs("secure", "b.example.org"); a != wantA || b != wantB {
			t.Errorf("served are %s and %s, want %s and %s", a, b, wantA, wantB)
		}
	}
	f("a1", "b1")

	issue(t, dir, "a", "a.example.org", "a2", 90*day)
	if err := reload("listeners: nonsense\n"); err == nil {
		t.Error("a broken configuration is loaded")
	}
	f("a2", "b1")

	issue(t, dir, "b", "b.example.org", "b2", 90*day)
	put(t, dir+"/a.key", "half a k")
	issue(t, dir, "c", "c.example.org", "c1", 90*day)
	more := strings.Replace(text, "certificates: [", "certificates: [{cert: "+dir+"/c.crt, key: "+dir+"/c.key}, ", 1)
	if err := reload(more); err != nil {
		t.Errorf("a bad pair keeps a good change of the configuration: %v", err)
	}
	f("a2", "b2")
	if got := r.servedAs("secure", "c.example.org"); got != "c1" {
		t.Errorf("the new entry is served as %s", got)
	}
	if r.logged("a certificate file changed and cannot be used; the previous certificate stays in use") == 0 {
		t.Error("the bad pair is not in the log")
	}

	put(t, dir+"/new.crt", "nothing")
	if err := reload(strings.Replace(more, "c.crt", "new.crt", 1)); err == nil {
		t.Error("a pair that was never good is loaded")
	}
	issue(t, dir, "a", "a.example.org", "a3", 90*day)
	if err := reload(more); err != nil {
		t.Error(err)
	}
	f("a3", "b2")
}

// If a certificate file is replaced during a reload, weir reads it again afterwards. It
// logs an error for each broken version.
func TestCertificateFilesChangeDuringReload(t *testing.T) {
	dir := t.TempDir()
	const day = 24 * time.Hour
	issue(t, dir, "a", "a.example.org", "a1", 90*day)
	text := `
listeners: {secure: {address: '@secure', protocol: tls}}
certificates: [{cert: DIR/a.crt, key: DIR/a.key}]
routes: [{listeners: [secure], hosts: [a.example.org], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
`
	text = strings.ReplaceAll(text, "DIR", dir)
	r := newRunning(t, text, "secure")
	r.path = filepath.Join(dir, "weir.yaml")
	put(t, r.path, strings.NewReplacer(r.words...).Replace(text)+"admin: {address: off}\n")
	const broken = "a certificate file changed and cannot be used; the previous certificate stays in use"
	replace := sync.OnceFunc(func() { put(t, dir+"/a.key", "the other half") })
	r.log = r.log.WithOptions(zap.Hooks(func(e zapcore.Entry) error {
		if e.Message == broken {
			replace()
		}
		return nil
	}))
	put(t, dir+"/a.key", "half a k")
	if err := r.reload("a test"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "weir logs both errors", func() error {
		if n := r.logged(broken); n != 2 {
			return fmt.Errorf("of %d", n)
		}
		return nil
	})
	r.endWatch()
}

// The kernel may refuse a new watch for a moment, because it limits their number (fs.inotify). weir then goes on
// with the previous one, and notices the next change.
func TestPreviousWatchStays(t *testing.T) {
	dir := t.TempDir()
	r := newSecure(t, dir)
	refused := *r.configInEffect()
	refused.Admin.TokenFile = filepath.Join(dir, "nowhere", "token") // a watch of this folder is refused
	r.watch(&refused, nil)
	if r.logged("weir cannot watch the files of this configuration for changes, and goes on watching those of the previous one") != 1 {
		t.Fatal("the watch was not refused, or nothing says so")
	}
	r.wantRenewed(dir)
}

// newSecure is a server with the certificate a.crt in the folder dir. Its configuration came from standard input.
func newSecure(t *testing.T, dir string) *running {
	t.Helper()
	issue(t, dir, "a", "a.example.org", "a1", 90*24*time.Hour)
	r := newRunning(t, strings.ReplaceAll(`
listeners: {secure: {address: '@secure', protocol: tls}}
certificates: [{cert: DIR/a.crt, key: DIR/a.key}]
routes: [{listeners: [secure], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
`, "DIR", dir), "secure")
	r.path = "-"
	r.watch(r.configInEffect(), nil)
	return r
}

// wantRenewed replaces the certificate of newSecure, and waits until the new one is served.
func (r *running) wantRenewed(dir string) {
	r.t.Helper()
	issue(r.t, dir, "a", "a.example.org", "a2", 90*24*time.Hour)
	eventually(r.t, "the new certificate is served", func() error {
		if got := r.servedAs("secure", "a.example.org"); got != "a2" {
			return fmt.Errorf("served is %s", got)
		}
		return nil
	})
}

// weir cannot read a configuration from standard input again, but it can read the files
// that the configuration names.
func TestCertificateFilesOfStandardInput(t *testing.T) {
	dir := t.TempDir()
	r := newSecure(t, dir)
	r.wantRenewed(dir)
	if err := r.reload("a test"); err == nil {
		t.Error("standard input is read again")
	}
}

func TestEndingsAreLogged(t *testing.T) {
	dir := t.TempDir()
	const day = 24 * time.Hour
	issue(t, dir, "soon", "soon.example.org", "soon", 10*day+time.Hour)
	issue(t, dir, "over", "over.example.org", "over", -day)
	issue(t, dir, "late", "late.example.org", "late", 90*day)
	text := "listeners: {secure: {address: '@secure', protocol: tls}}\ncertificates:\n"
	for _, name := range []string{"soon", "over", "late"} {
		text += fmt.Sprintf("  - {cert: %s/%s.crt, key: %s/%s.key}\n", dir, name, dir, name)
	}
	text += "routes: [{listeners: [secure], backend: app}]\nbackends: {app: {endpoints: ['127.0.0.1:1']}}\n"
	r := newRunning(t, text, "secure")
	soon := r.lines.FilterMessage("a certificate expires soon").All()
	if len(soon) != 1 {
		t.Fatalf("%d certificates run out soon", len(soon))
	}
	if m := soon[0].ContextMap(); m["names"] != "soon.example.org" || m["days"] != int64(10) || m["source"] != dir+"/soon.crt" || soon[0].Level != zap.WarnLevel {
		t.Errorf("the line is %v", soon[0])
	}
	if over := r.lines.FilterMessage("a certificate has expired: clients refuse it").All(); len(over) != 1 || over[0].Level != zap.ErrorLevel {
		t.Errorf("the lines are %v", over)
	}
}

// Tenants of a cluster may add new names again and again. weir remembers and logs only a limited number of
// them.
func TestNamesToldOfAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l recentlyLogged
		told := func(prefix string) (n int) {
			for i := range 3 * maxRecentlyLogged {
				if l.first(fmt.Sprint(prefix, i), time.Hour) {
					n++
				}
			}
			return n
		}
		if a, b := told("a"), told("b"); a != maxRecentlyLogged || b != 0 || len(l.said) != maxRecentlyLogged {
			t.Errorf("%d are told of, then %d, and %d remembered", a, b, len(l.said))
		}
		time.Sleep(time.Hour)
		if !l.first("a0", time.Hour) || l.first("a0", time.Hour) {
			t.Error("after an hour it is told of again, once")
		}
		if n := told("c"); n != maxRecentlyLogged-1 || len(l.said) != maxRecentlyLogged {
			t.Errorf("%d are told of, and %d remembered", n, len(l.said))
		}
	})
	var all []string
	for i := range 5000 {
		all = append(all, fmt.Sprintf("%d.example", i))
	}
	if text := namesTold(all); len(text) > 400 || !strings.HasSuffix(text, "19.example and 4980 more") {
		t.Errorf("told is %q", text)
	}
	if text := namesTold(all[:2]); text != "0.example, 1.example" {
		t.Errorf("told is %q", text)
	}
}

// If an authority or a storage cannot be reached, weir starts, refuses handshakes for the
// name, logs the error, and serves all other names.
func TestStartsWithoutCertificates(t *testing.T) {
	dir := t.TempDir()
	issue(t, dir, "a", "a.example.org", "a1", 90*24*time.Hour)
	put(t, dir+"/file", "")
	r := newRunning(t, strings.ReplaceAll(`
listeners: {secure: {address: '@secure', protocol: tls}}
storage: DIR/file/tickets
certificates:
  - {cert: DIR/a.crt, key: DIR/a.key}
  - acme: {hosts: [new.example.org], directory: 'https://127.0.0.1:1/dir', storage: DIR/acme}
  - acme: {hosts: [stored.example.org], directory: 'https://127.0.0.1:1/dir', storage: DIR/file/acme}
routes: [{listeners: [secure], backend: app}]
backends: {app: {endpoints: ['127.0.0.1:1']}}
`, "DIR", dir), "secure")
	if got := r.servedAs("secure", "a.example.org"); got != "a1" {
		t.Errorf("a name with a certificate is served as %s", got)
	}
	for range 3 {
		for _, host := range []string{"new.example.org", "stored.example.org"} {
			if got := r.servedAs("secure", host); !strings.Contains(got, "unrecognized name") {
				t.Errorf("%s is served as %s", host, got)
			}
		}
	}
	if n := r.logged("a handshake was refused: there is no certificate for the name yet"); n != 2 {
		t.Errorf("handshakes for two names without a certificate make %d lines", n)
	}
	for _, kind := range []acme.Kind{acme.Failed, acme.StorageError} {
		eventually(t, string(kind), func() error {
			if r.logged(string(kind)) == 0 {
				return fmt.Errorf("not yet")
			}
			return nil
		})
	}
	if r.logged("session ticket keys are not shared") == 0 {
		t.Error("nobody says that ticket keys are not shared")
	}
}

// weir opens a storage as soon as the storage exists.
func TestLateStorage(t *testing.T) {
	down := true
	opened := 0
	l := &lateStorage{open: func() (storage.Storage, error) {
		if down {
			return nil, fmt.Errorf("it is down")
		}
		opened++
		return storage.Open(t.TempDir(), zap.NewNop())
	}}
	if err := l.Store(t.Context(), "tickets/a", []byte("x")); err == nil {
		t.Error("a storage that is down stores")
	}
	down = false
	if err := l.Store(t.Context(), "tickets/a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if text, err := l.Load(t.Context(), "tickets/a"); err != nil || string(text) != "x" {
		t.Errorf("loaded is %q, %v", text, err)
	}
	if all, err := l.List(t.Context(), "tickets", false); err != nil || len(all) != 1 {
		t.Errorf("listed are %q, %v", all, err)
	}
	if err := l.Lock(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if err := l.Unlock(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if err := l.Delete(t.Context(), "tickets/a"); err != nil {
		t.Error(err)
	}
	if opened != 1 {
		t.Errorf("the storage was opened %d times", opened)
	}
	l.close()
	if _, err := l.Load(t.Context(), "tickets/a"); err == nil {
		t.Error("a storage that was closed loads")
	}
}

// closeNotice is a storage that reports when it is closed.
type closeNotice struct {
	storage.Storage
	closed chan struct{}
}

func (c closeNotice) Close() error {
	defer close(c.closed)
	return c.Storage.Close()
}

// A storage that hangs during its opening delays only the callers that use it. If it
// opens after the close, it is closed again.
func TestLateStorageHangs(t *testing.T) {
	opening, open := make(chan struct{}), make(chan struct{})
	closed := make(chan struct{})
	l := &lateStorage{open: func() (storage.Storage, error) {
		close(opening)
		<-open
		s, err := storage.Open(t.TempDir(), zap.NewNop())
		return closeNotice{s, closed}, err
	}}
	asked := make(chan error, 1)
	go func() {
		_, err := l.Load(t.Context(), "tickets/a")
		asked <- err
	}()
	<-opening
	l.close() // returns at once
	if _, err := l.Load(t.Context(), "tickets/a"); !errors.Is(err, errStorageClosed) {
		t.Errorf("asking a closed storage: %v", err)
	}
	close(open)
	if err := <-asked; !errors.Is(err, errStorageClosed) {
		t.Errorf("who asked before it was closed: %v", err)
	}
	<-closed
}

// A policy cannot have the name that challenges use in place of a policy.
func TestNoPolicyIsCalledAsChallengesAre(t *testing.T) {
	_, err := file.Parse("test", fmt.Appendf(nil, `
listeners: {secure: {address: ':443', protocol: tls}}
certificates: [{self_signed: {hosts: [a.example.org]}}]
routes: [{listeners: [secure], tls_policy: %[1]s, backend: app}]
tls_policies: {%[1]s: {min_version: '1.3'}}
backends: {app: {endpoints: ['127.0.0.1:1']}}
`, proxy.ChallengePolicy), os.LookupEnv)
	if err == nil || !strings.Contains(err.Error(), "give the policy another name") {
		t.Errorf("the error is %v", err)
	}
}
