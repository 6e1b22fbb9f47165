//go:build linux

package kube

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const apiAddress = "10.10.0.10"

// cluster is the control plane. All tests share it, and each has its own namespaces and classes.
type cluster struct {
	once  sync.Once
	err   error
	dir   string
	parts map[string]*process
	// rights is a kubeconfig for the service account of the manifests in deploy. It has only their rights.
	rights string
	token  string // the token of that service account
	api    *http.Client
}

var theCluster = &cluster{parts: map[string]*process{}}

// start starts the control plane when the first test needs it.
func (c *cluster) start(t *testing.T) {
	t.Helper()
	c.once.Do(func() { c.err = c.begin() })
	if c.err != nil {
		t.Fatalf("the control plane: %v", c.err)
	}
}

// controllers are the controllers that Deployments, DaemonSets and their Pods need.
const controllers = "deployment-controller,replicaset-controller,daemonset-controller,endpointslice-controller,namespace-controller," +
	"garbage-collector-controller,serviceaccount-controller,root-ca-certificate-publisher-controller,disruption-controller,taint-eviction-controller"

func (c *cluster) begin() error {
	c.dir = filepath.Join(scratch, "cluster")
	if err := errors.Join(os.MkdirAll(c.dir, 0o700), c.keys()); err != nil {
		return err
	}
	const etcd = "http://127.0.0.1:2379"
	if err := c.run("etcd", func() error { return answers(http.DefaultClient, etcd+"/health") },
		"--data-dir=etcd", "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380", "--unsafe-no-fsync", "--log-level=warn"); err != nil {
		return err
	}
	if err := c.startAPI(); err != nil {
		return err
	}
	if err := c.run("kube-controller-manager", func() error { return answers(anyone, "https://127.0.0.1:10257/healthz") },
		"--kubeconfig=manager.kubeconfig", "--authentication-kubeconfig=manager.kubeconfig", "--authorization-kubeconfig=manager.kubeconfig",
		"--authentication-skip-lookup", "--bind-address=127.0.0.1", "--secure-port=10257", "--leader-elect=false", "--use-service-account-credentials",
		"--service-account-private-key-file=accounts.key", "--root-ca-file=ca.crt", "--controllers="+controllers); err != nil {
		return err
	}
	return errors.Join(c.run("standin", func() error {
		if !strings.Contains(c.parts["standin"].said(4<<10), "ready") {
			return errors.New("it is not ready")
		}
		return nil
	}, "-kubeconfig=admin.kubeconfig"), c.install())
}

func (c *cluster) startAPI() error {
	return c.run("kube-apiserver", func() error { return answers(c.api, "https://"+apiAddress+":6443/readyz") },
		"--etcd-servers=http://127.0.0.1:2379", "--bind-address="+apiAddress, "--secure-port=6443", "--advertise-address="+apiAddress,
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true", "--authorization-mode=RBAC",
		"--client-ca-file=ca.crt", "--tls-cert-file=api.crt", "--tls-private-key-file=api.key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=accounts.pub", "--service-account-signing-key-file=accounts.key",
		"--disable-admission-plugins=ServiceAccount", "--profiling=false", "--kubelet-preferred-address-types=InternalIP")
}

// run starts a part of the control plane and waits until it is ready.
func (c *cluster) run(name string, ready func() error, args ...string) error {
	cmd := exec.Command(filepath.Join(kit, name), args...)
	cmd.Dir = c.dir
	p, err := start(name, filepath.Join(c.dir, name+".log"), cmd)
	if err != nil {
		return err
	}
	c.parts[name] = p
	deadline := time.Now().Add(2 * time.Minute)
	for err = ready(); err != nil; err = ready() {
		if !p.running() || time.Now().After(deadline) {
			return fmt.Errorf("%s does not get ready: %w\n%s", name, err, p.said(4<<10))
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

func (c *cluster) stop() {
	for _, p := range c.parts {
		p.kill()
	}
}

// anyone is a client that accepts every server certificate.
var anyone = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}

func answers(client *http.Client, url string) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		return errors.New(resp.Status)
	}
	return nil
}

// keys makes the CA, the certificates and the kubeconfigs of the control plane.
func (c *cluster) keys() error {
	authority, err := newPair(nil, &x509.Certificate{Subject: pkix.Name{CommonName: "cluster"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	if err != nil {
		return err
	}
	api, err1 := newPair(authority, &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP(apiAddress), net.ParseIP("127.0.0.1"), net.ParseIP("10.96.0.1")}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	admin, err2 := newPair(authority, &x509.Certificate{Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, ExtKeyUsage: client})
	manager, err3 := newPair(authority, &x509.Certificate{Subject: pkix.Name{CommonName: "system:kube-controller-manager"}, ExtKeyUsage: client})
	accounts, err4 := newPair(nil, &x509.Certificate{Subject: pkix.Name{CommonName: "accounts"}})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(admin.cert, admin.key)
	if err != nil {
		return err
	}
	c.api = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}}}
	files := map[string][]byte{
		"ca.crt": authority.cert, "api.crt": api.cert, "api.key": api.key, "accounts.key": accounts.key, "accounts.pub": accounts.public,
		"admin.kubeconfig": kubeconfig(authority, admin.user()), "manager.kubeconfig": kubeconfig(authority, manager.user()),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(c.dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// pair is a certificate and its key in PEM.
type pair struct {
	cert, key, public []byte
	signer            crypto.Signer
	parsed            *x509.Certificate
}

// newPair makes a certificate and a key from a template, in which most fields may be empty. Without an
// authority the certificate is self-signed.
func newPair(authority *pair, t *x509.Certificate) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().AddDate(0, 0, 7)
	t.KeyUsage |= x509.KeyUsageDigitalSignature
	by := &pair{parsed: t, signer: key}
	if authority != nil {
		by = authority
	}
	der, err := x509.CreateCertificate(rand.Reader, t, by.parsed, key.Public(), by.signer)
	if err != nil {
		return nil, err
	}
	p := &pair{signer: key, cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	private, err1 := x509.MarshalECPrivateKey(key)
	public, err2 := x509.MarshalPKIXPublicKey(key.Public())
	p.key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
	p.public = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	var err3 error
	p.parsed, err3 = x509.ParseCertificate(der)
	return p, errors.Join(err1, err2, err3)
}

func (p *pair) user() string {
	return fmt.Sprintf("{client-certificate-data: %s, client-key-data: %s}", base64.StdEncoding.EncodeToString(p.cert), base64.StdEncoding.EncodeToString(p.key))
}

func kubeconfig(authority *pair, user string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%s:6443", certificate-authority-data: %s}}]
users: [{name: u, user: %s}]
contexts: [{name: x, context: {cluster: c, user: u, namespace: weir}}]
current-context: x
`, apiAddress, base64.StdEncoding.EncodeToString(authority.cert), user)
}

// kubectl runs kubectl as the administrator of the cluster, and returns its output.
func (c *cluster) kubectl(input string, args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(kit, "kubectl"), append([]string{"--kubeconfig=" + filepath.Join(c.dir, "admin.kubeconfig")}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, complaint.String())
	}
	return out.String(), nil
}

// manifests returns the output of kustomize for a folder of deploy/kustomize.
func (c *cluster) manifests(folder string) (string, error) {
	return c.kubectl("", "kustomize", filepath.Join("../../deploy/kustomize", folder))
}

// install applies the manifests that give weir its rights, and makes a kubeconfig for their service account.
func (c *cluster) install() error {
	all, err := c.manifests("examples/everything")
	if err != nil {
		return err
	}
	var some []string
	for _, document := range strings.Split(all, "\n---\n") {
		for _, kind := range []string{"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "IngressClass"} {
			if strings.Contains("\n"+document, "\nkind: "+kind+"\n") {
				some = append(some, document)
			}
		}
	}
	if _, err := c.kubectl(strings.Join(some, "\n---\n"), "apply", "-f", "-"); err != nil {
		return err
	}
	if c.token, err = c.kubectl("", "create", "token", "weir", "--namespace=weir", "--duration=6h"); err != nil {
		return err
	}
	c.token = strings.TrimSpace(c.token)
	ca, err := os.ReadFile(filepath.Join(c.dir, "ca.crt"))
	if err != nil {
		return err
	}
	c.rights = filepath.Join(c.dir, "weir.kubeconfig")
	return os.WriteFile(c.rights, kubeconfig(&pair{cert: ca}, "{token: "+c.token+"}"), 0o600)
}
