package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const ticketConfig = `
listeners:
  secure: {address: '@secure', protocol: tls}
certificates: [{cert: '@@shared/app.crt', key: '@@shared/app.key'}]
tls_policies:
  robots: {client_auth: {mode: require, ca: '@@shared/app.crt'}}
  old: {min_version: "1.0"}
routes:
  - {listeners: [secure], hosts: [app.example.org], backend: app}
  - {listeners: [secure], hosts: [robots.example.org], tls_policy: robots, backend: app}
  - {listeners: [secure], hosts: [old.example.org], tls_policy: old, backend: app}
backends: {app: {endpoints: ['@app']}}
storage: '${STORAGE}'
`

// startTicketReplicas starts n replicas that share one storage and one certificate.
func startTicketReplicas(t *testing.T, storage string, n int) (config string, all []*weir) {
	t.Helper()
	shared := t.TempDir()
	writeCertificate(t, shared, "app", false, "app.example.org", "robots.example.org", "old.example.org")
	config = strings.ReplaceAll(ticketConfig, "@@shared", shared)
	app := newWebBackend(t, "app").address
	for range n {
		w := newWeir(t)
		w.env, w.address["app"] = []string{"STORAGE=" + storage}, app
		all = append(all, w.start(config))
	}
	return config, all
}

// anySession is a session cache with one session, which it returns for every server.
type anySession struct{ session *tls.ClientSessionState }

func (a *anySession) Get(string) (*tls.ClientSessionState, bool) {
	return a.session, a.session != nil
}

func (a *anySession) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		a.session = s
	}
}

// resumes makes a request and returns true if the TLS session was resumed.
func resumes(t *testing.T, w *weir, host string, version uint16, cache tls.ClientSessionCache, own ...tls.Certificate) (bool, error) {
	t.Helper()
	config := anyCertificate(host)
	config.MinVersion, config.MaxVersion, config.ClientSessionCache, config.Certificates = version, version, cache, own
	c := tls.Client(dial(t, w.at("secure")), config)
	defer c.Close()
	_, err := askSeen(c, host, "/")
	return c.ConnectionState().DidResume, err
}

// A load balancer sends the connections of one client to different replicas. If the replicas did not share
// their ticket keys, many connections would need a full handshake, and after a rolling restart all of them.
func TestSessionsAreResumedOnEveryReplica(t *testing.T) {
	for _, storage := range storages {
		t.Run(storage.name, func(t *testing.T) {
			t.Parallel()
			config, replicas := startTicketReplicas(t, storage.open(t), 2)
			a, b := replicas[0], replicas[1]
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				cache := &anySession{}
				f := func(w *weir, want bool) {
					t.Helper()
					if resumed, err := resumes(t, w, "app.example.org", version, cache); err != nil || resumed != want {
						t.Errorf("%s: resumed: %t, %v", tls.VersionName(version), resumed, err)
					}
				}
				f(a, false)
				// A replica may learn new keys a moment later.
				eventually(t, "the other replica resumes", func() error {
					if resumed, err := resumes(t, b, "app.example.org", version, &anySession{cache.session}); err != nil || !resumed {
						return fmt.Errorf("resumed: %t, %v", resumed, err)
					}
					return nil
				})
				f(b, true)
				f(a, true)
				// A rolling restart replaces one replica after the other.
				for _, w := range []*weir{a, b} {
					if status := w.terminate(); status != 0 {
						t.Errorf("weir ended with status %d", status)
					}
					w.start(config)
					f(w, true)
				}
				f(a, true)
			}
		})
	}
}

// A ticket proves only that a handshake was complete. Under another TLS policy that handshake might fail, so
// neither this replica nor another one accepts the ticket for a host with another policy.
func TestNoSessionIsResumedUnderAnotherPolicy(t *testing.T) {
	t.Parallel()
	_, replicas := startTicketReplicas(t, filepath.Join(t.TempDir(), "shared"), 2)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, from := range []string{"app.example.org", "old.example.org"} {
			cache := &anySession{}
			if _, err := resumes(t, replicas[0], from, version, cache); err != nil {
				t.Fatal(err)
			}
			for _, w := range replicas {
				for _, to := range []string{"app.example.org", "old.example.org", "robots.example.org"} {
					resumed, err := resumes(t, w, to, version, &anySession{cache.session})
					if to != from && resumed {
						t.Errorf("%s: a session of %s was resumed for %s", tls.VersionName(version), from, to)
					}
					if (to == "robots.example.org") != (err != nil) {
						t.Errorf("%s: %s after %s: %v", tls.VersionName(version), to, from, err)
					}
				}
			}
		}
	}
}

// OpenSSL also resumes sessions on another replica. It stores sessions in files.
func TestOpenSSLResumesOnTheOtherReplica(t *testing.T) {
	t.Parallel()
	openssl := need(t, "openssl")
	_, replicas := startTicketReplicas(t, filepath.Join(t.TempDir(), "shared"), 2)
	for _, version := range []string{"-tls1_2", "-tls1_3"} {
		session := filepath.Join(t.TempDir(), "session")
		run := func(w *weir, host string, options ...string) string {
			t.Helper()
			args := append([]string{"s_client", "-connect", w.at("secure"), "-servername", host, "-ign_eof", version}, options...)
			cmd := exec.Command(openssl, args...)
			cmd.Stdin = strings.NewReader("GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n")
			out, _ := cmd.CombinedOutput()
			return string(out)
		}
		if out := run(replicas[0], "app.example.org", "-sess_out", session); !strings.Contains(out, "HTTP/1.1 200 OK") {
			t.Fatalf("%s: no session: %.2000s", version, out)
		}
		if _, err := os.Stat(session); err != nil {
			t.Fatal(err)
		}
		eventually(t, version+" resumes on the other replica", func() error {
			out := run(replicas[1], "app.example.org", "-sess_in", session)
			if !strings.Contains(out, "Reused, TLS") || !strings.Contains(out, "HTTP/1.1 200 OK") {
				return fmt.Errorf("%.2000s", out)
			}
			return nil
		})
		if out := run(replicas[1], "robots.example.org", "-sess_in", session); strings.Contains(out, "Reused, TLS") || strings.Contains(out, "HTTP/1.1 200 OK") {
			t.Errorf("%s: the session opens a host that requires certificates: %.2000s", version, out)
		}
	}
}

// If the storage is gone, or accepts connections and never answers, weir and its connections continue, and a
// new weir can still start.
func TestStorageGoesAway(t *testing.T) {
	for how, away := range map[string]syscall.Signal{"gone": syscall.SIGKILL, "hanging": syscall.SIGSTOP} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			redis := need(t, "redis-server")
			address := freePort(t)
			host, redisPort, _ := net.SplitHostPort(address)
			server := runPeer(t, redis, "--bind", host, "--port", redisPort, "--save", "", "--appendonly", "no", "--dir", t.TempDir())
			server.listening(address)
			config, replicas := startTicketReplicas(t, "redis://"+address, 1)
			w := replicas[0]
			cache := &anySession{}
			if _, err := resumes(t, w, "app.example.org", tls.VersionTLS13, cache); err != nil {
				t.Fatal(err)
			}
			if err := server.cmd.Process.Signal(away); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if resumed, err := resumes(t, w, "app.example.org", tls.VersionTLS13, cache); err != nil || !resumed {
					t.Errorf("without the storage: resumed: %t, %v", resumed, err)
				}
			}
			w.reload(config + "limits: {pending: 4096}\n")
			if resumed, err := resumes(t, w, "app.example.org", tls.VersionTLS13, cache); err != nil || !resumed {
				t.Errorf("after a reload without the storage: resumed: %t, %v", resumed, err)
			}
			late := newWeir(t)
			late.env, late.address["app"] = w.env, w.address["app"]
			late.start(config)
			if _, err := resumes(t, late, "app.example.org", tls.VersionTLS13, &anySession{}); err != nil {
				t.Errorf("a weir that starts without the storage: %v", err)
			}
			eventually(t, "the log says so", func() error {
				if !strings.Contains(late.log.String(), "session ticket keys are not shared") {
					return errNotYet
				}
				return nil
			})
			if status := w.terminate(); status != 0 {
				t.Errorf("weir ended with status %d", status)
			}
		})
	}
}
