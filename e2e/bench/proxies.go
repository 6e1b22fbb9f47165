package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"embed"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/weirproxy/weir/e2e/freeport"
)

//go:embed peers/*.tmpl
var templates embed.FS

// A proxy is one program under test.
type proxy struct {
	config  string // the name of the file; its template has .tmpl added to the name
	command func(config string) []string
	version []string
	log     string   // the file of the access log, in the working folder
	not     []string // rows that the proxy does not support
}

var proxies = map[string]proxy{
	"weir": {
		config:  "weir.yaml",
		command: func(c string) []string { return []string{"weir", "run", "-c", c} },
		version: []string{"weir", "version"},
		log:     "weir.log",
	},
	"haproxy": {
		log:     "haproxy.out", // standard output
		config:  "haproxy.cfg",
		command: func(c string) []string { return []string{"haproxy", "-db", "-f", c} },
		version: []string{"haproxy", "-v"},
		not:     []string{edited, guarded, traced},
	},
	"haproxy3": { // the flag -haproxy3 is its path
		log:     "haproxy3.out",
		config:  "haproxy.cfg",
		command: func(c string) []string { return []string{"haproxy", "-db", "-f", c} },
		version: []string{"haproxy", "-v"},
		not:     []string{edited, guarded, traced},
	},
	"nginx": {
		log:     "nginx-access.log",
		config:  "nginx.conf",
		command: func(c string) []string { return []string{"nginx", "-p", filepath.Dir(c), "-c", c} },
		version: []string{"nginx", "-v"},
		not:     []string{"tcp", amongPaths, amongHosts, edited, guarded, traced, "idle-tunnel", "tunnel", "used", "ws", "ws-used", "wss", "wss-used", "ws2", "ws2-used"},
	},
}

// program returns the path of a proxy or a tool.
func (o *options) program(name string) string {
	switch name {
	case "weir":
		return o.weir
	case "haproxy3":
		return o.haproxy3
	}
	return name
}

// setup has the values for the templates.
type setup struct {
	Dir, Body                                          string
	Connections                                        int // the maximum number of connections in HAProxy's configuration
	HTTPPort, TLSPort, TCPPort, AdminPort, BackendPort int
	UploadPort, CallPort                               int    // ports of our own backend
	ProxyPort                                          int    // plain HTTP behind a PROXY header
	Certificate                                        string // path of the current certificate, without .crt, .key and .pem (both in one file)
	Logged                                             bool   // the proxies write an access log
	Traced                                             bool   // weir traces requests
	Fields                                             string // the HTTP headers that the peers set: all, few or lean
	Threads                                            int
	Gzip                                               bool     // the proxies compress pathJSON
	Filters                                            string   // the filters of the route: edited or guarded; "": none
	Mutual                                             bool     // the proxy requests a client certificate
	Paths, Hosts                                       []string // the paths or hosts of a row with many routes; nil: the listener has a single route
}

// newSetup chooses free ports.
func newSetup(dir string, from *freeport.Range) (setup, error) {
	ports, err := freePorts(from, 8)
	if err != nil {
		return setup{}, err
	}
	return setup{Dir: dir, HTTPPort: ports[0], TLSPort: ports[1], TCPPort: ports[2], AdminPort: ports[3], BackendPort: ports[4],
		UploadPort: ports[5], CallPort: ports[6], ProxyPort: ports[7]}, nil
}

// render writes the configuration file called name into the working folder, and returns
// its path.
func (s setup) render(name string) (string, error) {
	t, err := template.ParseFS(templates, "peers/"+name+".tmpl")
	if err != nil {
		return "", err
	}
	var text bytes.Buffer
	if err := t.Execute(&text, s); err != nil {
		return "", err
	}
	path := filepath.Join(s.Dir, name)
	return path, os.WriteFile(path, text.Bytes(), 0o644)
}

// freePorts returns n ports on which nothing listens.
func freePorts(from *freeport.Range, n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		address, err := from.Take("127.0.0.1")
		if err != nil {
			return nil, err
		}
		ports[i] = int(netip.MustParseAddrPort(address).Port())
	}
	return ports, nil
}

// process is a child pinned to one core.
type process struct {
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{} // closed when the process has ended
}

// start runs args on some cores, and writes its output to log. The process ends with bench.
func start(on cores, log string, env []string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("taskset", append([]string{"-c", on.String()}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = childAttributes()
	if err := cmd.Start(); err != nil {
		out.Close()
		return nil, fmt.Errorf("cannot start %s: %w", args[0], err)
	}
	p := &process{cmd: cmd, log: out, done: make(chan struct{})}
	go func() {
		cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop kills the process, because no connection of the bench needs time to finish.
func (p *process) stop() {
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(time.Second):
		for _, pid := range family(p.cmd.Process.Pid) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		<-p.done
	}
	p.log.Close()
}

// ready waits until a process accepts connections on port.
func (p *process) ready(port int) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended at once: %s", p.cmd.Args[3], p.output())
		default:
		}
	}
	return fmt.Errorf("%s does not listen on port %d: %s", p.cmd.Args[3], port, p.output())
}

// state reports whether the process has ended, and how.
func (p *process) state() string {
	select {
	case <-p.done:
		return "has ended: " + p.cmd.ProcessState.String()
	case <-time.After(100 * time.Millisecond):
		return "is running"
	}
}

func (p *process) output() string {
	text, _ := os.ReadFile(p.log.Name())
	return strings.TrimSpace(string(text))
}

// writeCertificates makes ecdsa.crt, .key and .pem with a P-256 key, rsa.* with a
// 2048-bit key, and clients.*, the CA of client certificates.
func writeCertificates(dir string) error {
	small, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	ca := certificateOf("clients")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	return errors.Join(
		writeCertificate(filepath.Join(dir, "ecdsa"), certificateOf("localhost"), small),
		writeCertificate(filepath.Join(dir, "rsa"), certificateOf("localhost"), large),
		writeCertificate(filepath.Join(dir, "clients"), ca, small),
	)
}

// certificateOf returns the template of a certificate for servers and clients.
func certificateOf(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// writeCertificate signs path.crt with key, and writes path.key, and path.pem with both.
func writeCertificate(path string, t *x509.Certificate, key crypto.Signer) error {
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	private := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	return errors.Join(
		os.WriteFile(path+".crt", cert, 0o644),
		os.WriteFile(path+".key", private, 0o600),
		os.WriteFile(path+".pem", append(cert, private...), 0o600),
	)
}
