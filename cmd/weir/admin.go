package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weirproxy/weir/cmd/weir/node"
)

// defaultAdmin is the address of the admin port if the command line names none.
const defaultAdmin = "http://127.0.0.1:8087"

// The limits for a request to an admin port.
const (
	askTimeout    = 15 * time.Second
	reloadTimeout = time.Minute // a reload waits for the objects of a cluster, and for the reload before it
	maxAnswer     = 64 << 20    // 8192 lines are 8 MiB
)

const reloadPath = "/reload"

func timeoutOf(path string) time.Duration {
	if path == reloadPath {
		return reloadTimeout
	}
	return askTimeout
}

// lateError says that the answer to a request did not arrive in time.
func lateError(address, path string) error {
	if path == reloadPath {
		return fmt.Errorf("the admin port %s has not answered within %v; a reload that has begun goes on: weir status and the log of weir show its result", address, reloadTimeout)
	}
	return fmt.Errorf("the admin port %s has not answered within %v; compare the address with admin.address, and see whether a firewall or an overloaded machine is the cause", address, askTimeout)
}

// tlsAdvice names the flag that would make a failed handshake succeed; empty: none would.
func tlsAdvice(err error) string {
	var (
		verification *tls.CertificateVerificationError
		op           *net.OpError
	)
	switch {
	case errors.As(err, &verification):
		return "use --ca FILE for the CA of its certificate; the certificate must be valid for the host in the URL"
	case errors.As(err, &op) && op.Op == "remote error": // crypto/tls reports an alert from the peer in this way
		return "if the configuration has admin.tls.client_ca, use --cert FILE and --key FILE for the client certificate"
	}
	return ""
}

// speaksTLS returns true if the body is the answer that Go's HTTP servers give to a request
// without TLS on a port that requires TLS.
func speaksTLS(body io.Reader) bool {
	text, _ := io.ReadAll(io.LimitReader(body, 1<<10))
	return strings.Contains(string(text), "HTTP request to an HTTPS server")
}

// askAdmin returns the answer of an admin port to a GET request.
func askAdmin(ctx context.Context, address string, o adminOptions, path string, query url.Values) ([]byte, error) {
	return requestAdmin(ctx, http.MethodGet, address, o, path, query)
}

// requestAdmin is askAdmin with any method. Without a token it uses the socket beside the port, which lets
// root and weir's own user do everything.
func requestAdmin(ctx context.Context, method, address string, o adminOptions, path string, query url.Values) ([]byte, error) {
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	socket := new(besideSocket)
	if token != "" {
		socket = nil
	}
	base, client, err := adminClient(address, o, socket)
	if err != nil {
		return nil, err
	}
	address = withoutToken(address)
	ctx, cancel := context.WithTimeout(ctx, timeoutOf(path))
	defer cancel()
	u := base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, nil)
	if err != nil {
		return nil, notAURL(address)
	}
	req.Close = true // each request has a client of its own
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, lateError(address, path)
	}
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		if advice := tlsAdvice(err); advice != "" {
			return nil, fmt.Errorf("cannot query the admin port %s: %w; %s", address, err, advice)
		}
		return nil, fmt.Errorf("cannot query the admin port %s: %w; compare the address with admin.address in the configuration of the running weir. By default the admin port listens only on loopback, and admin.address: off turns it off", address, err)
	}
	defer res.Body.Close()
	if err := answerError(res, address, path, strings.HasPrefix(base, "http://")); err != nil {
		if socket != nil && socket.foreign != "" && (res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden) {
			err = fmt.Errorf("%w; the command did not use the Unix socket beside the port: %s", err, socket.foreign)
		}
		return nil, err
	}
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, lateError(address, path)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the response of the admin port %s: %w", address, err)
	}
	return answer, nil
}

// answerError returns the error that the response of an admin port means; nil: it is the answer.
// plain: the request used no TLS.
func answerError(res *http.Response, address, path string, plain bool) error {
	switch res.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMisdirectedRequest:
		why, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("the admin port %s refuses the request: %s (%s); pass the token with --token-file or %s", address, strings.TrimSpace(string(why)), res.Status, tokenVariable)
	case http.StatusUnprocessableEntity, http.StatusConflict: // the response says why
		why, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return errors.New(strings.TrimSpace(string(why)))
	case http.StatusServiceUnavailable: // an upgrade ended meanwhile, for example
		why, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))
		return fmt.Errorf("%s answers %s to %s %s: %s", address, res.Status, res.Request.Method, path, strings.TrimSpace(string(why)))
	case http.StatusBadRequest:
		if plain && speaksTLS(res.Body) {
			return fmt.Errorf("the admin port %s uses TLS (admin.tls); write its URL with https://, and use --ca FILE if the system does not trust the CA of its certificate", address)
		}
	}
	return fmt.Errorf("%s is not the admin port of a weir with %s %s: it answers %s; use the address in admin.address, not that of a listener", address, res.Request.Method, path, res.Status)
}

// adminClient converts the address from the command line to the beginning of a URL, and
// makes a client for it. The client uses the socket beside the port, if there is one, unless socket is nil.
func adminClient(address string, o adminOptions, socket *besideSocket) (base string, client *http.Client, err error) {
	transport := &http.Transport{}
	if transport.TLSClientConfig, err = o.tls(); err != nil {
		return "", nil, err
	}
	client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		return "http://unix", client, nil
	}
	if !strings.Contains(address, "://") {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return "", nil, notAURL(address)
		}
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", nil, notAURL(address)
	}
	if socket != nil && u.Scheme == "http" && u.User == nil {
		transport.DialContext = socket.dial
	}
	return strings.TrimRight(address, "/"), client, nil
}

// besideSocket is the Unix socket beside an admin port.
type besideSocket struct {
	foreign string // that another user than weir's opened it; empty: not known
}

// dial connects to the socket beside an admin port, or to the port if there is no socket that the command may use.
func (s *besideSocket) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := new(net.Dialer)
	if beside := node.AdminSocket(strings.Replace(address, "localhost:", "127.0.0.1:", 1)); beside != "" {
		if c, err := d.DialContext(ctx, "unix", beside); err == nil {
			port := strings.TrimPrefix(beside, "@weir/")
			if mayAnswer(c, port) {
				return c, nil
			}
			if uid, _ := node.PeerUser(c); uid != portUser(port) {
				s.foreign = fmt.Sprintf("user %d opened %s, and another user the port; ss -xlp shows the process", uid, beside)
			}
			c.Close()
		}
	}
	return d.DialContext(ctx, network, address)
}

// mayAnswer returns true if the socket beside the port was opened by root, by the user of this command or, if that is
// root, by the user who opened the port: any process may take the name of an abstract socket.
func mayAnswer(socket net.Conn, port string) bool {
	uid, known := node.PeerUser(socket)
	return known && (uid == 0 || uid == os.Geteuid() || os.Geteuid() == 0 && uid == portUser(port))
}

// portUser returns the user who opened the TCP port at an IP address; -1: unknown.
func portUser(address string) int {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return -1
	}
	hosts := []netip.Addr{at.Addr(), netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	if at.Addr().Is6() {
		hosts = slices.Delete(hosts, 1, 2)
	}
	for _, host := range hosts {
		if uid := listenerUser(netip.AddrPortFrom(host, at.Port())); uid >= 0 {
			return uid
		}
	}
	return -1
}

// listenerUser finds the user of a listener in /proc/net/tcp (proc_pid_net(5)); -1: there is no such listener.
func listenerUser(at netip.AddrPort) int {
	name, local := "/proc/net/tcp", ""
	if at.Addr().Is6() {
		name += "6"
	}
	for word := range slices.Chunk(at.Addr().AsSlice(), 4) {
		local += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(word))
	}
	local += fmt.Sprintf(":%04X", at.Port())
	f, err := os.Open(name)
	if err != nil {
		return -1
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		column := strings.Fields(lines.Text())
		if len(column) < 8 || column[3] != "0A" { // the kernel lists the listeners first
			break
		}
		if uid, err := strconv.Atoi(column[7]); column[1] == local && err == nil {
			return uid
		}
	}
	return -1
}

// tokenVariable is the environment variable that has the token of the admin port, for
// commands.
const tokenVariable = "WEIR_ADMIN_TOKEN"

// adminOptions are the options by which commands authenticate to an admin port.
type adminOptions struct{ tokenFile, ca, cert, key string }

// flags adds the options to a command.
func (o *adminOptions) flags(c *cobra.Command) {
	c.Flags().StringVar(&o.tokenFile, "token-file", "", "a `FILE` with the token of admin.token")
	c.Flags().StringVar(&o.ca, "ca", "", "a `FILE` with CA certificates that verify the certificate of admin.tls; the default is the system's")
	c.Flags().StringVar(&o.cert, "cert", "", "a `FILE` with the client certificate for admin.tls.client_ca")
	c.Flags().StringVar(&o.key, "key", "", "a `FILE` with the private key of --cert")
}

// token returns the value of admin.token; empty: no option has one.
func (o adminOptions) token() (string, error) {
	if o.tokenFile == "" {
		return os.Getenv(tokenVariable), nil
	}
	data, err := os.ReadFile(o.tokenFile)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func (o adminOptions) tls() (*tls.Config, error) {
	c := &tls.Config{}
	if o.ca != "" {
		data, err := os.ReadFile(o.ca)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("--ca: %s has no certificate in PEM", o.ca)
		}
	}
	if (o.cert == "") != (o.key == "") {
		return nil, errors.New("--cert and --key belong together; use both")
	}
	if o.cert != "" {
		pair, err := tls.LoadX509KeyPair(o.cert, o.key)
		if err != nil {
			return nil, fmt.Errorf("--cert and --key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// withoutToken returns an address for error messages. A URL may contain the token as its
// password.
func withoutToken(address string) string {
	if u, err := url.Parse(address); err == nil && u.User != nil {
		return u.Redacted()
	}
	if before, after, ok := strings.Cut(address, "@"); ok { // not a valid URL, but it may contain a password
		scheme, _, _ := strings.Cut(before, "://")
		return scheme + "://...@" + after
	}
	return address
}

func notAURL(address string) error {
	address = withoutToken(address)
	return fmt.Errorf("%q is not the URL of an admin port; write it as %s, HOST:PORT or unix:/path", address, defaultAdmin)
}
