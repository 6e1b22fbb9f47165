package standin

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// suitePod is a Pod of the conformance suite of the Gateway API. Its environment selects the server:
//
//	GRPC_ECHO_SERVER: gRPC on 3000, and over TLS on 8443 if it has a certificate
//	TCP_ECHO_SERVER:  lines on 3000, and over TLS on 8443 if it has a certificate
//	otherwise:        HTTP/1.1 on 3000, HTTP/2 without TLS on 3001, and HTTPS on 8443 if it has a certificate
type suitePod struct {
	env map[string]string
	log *podLog
	tls *tls.Config // nil: it has no certificate

	mu    sync.Mutex
	tries map[string]int // requests that failed on purpose, by the uuid that they name
}

// isOfSuite reports whether the image is one of the conformance suite.
func isOfSuite(image string) bool { return strings.Contains(image, "/gateway-api/echo-") }

// serveSuite starts the servers of a Pod of the conformance suite. It fails while the Secret with
// its certificate does not exist.
func (c *cluster) serveSuite(ctx context.Context, p *corev1.Pod, r *pod) (stop []func(), err error) {
	container := &p.Spec.Containers[0]
	s := &suitePod{env: map[string]string{"POD_NAME": p.Name, "NAMESPACE": p.Namespace}, log: &r.log, tries: map[string]int{}}
	for _, e := range container.Env {
		if e.Value != "" {
			s.env[e.Name] = e.Value
		}
	}
	if s.tls, err = c.tlsOf(ctx, p, s.env); err != nil {
		return nil, err
	}
	open := func(port, otherwise string, start func(net.Listener) func()) {
		if err != nil {
			return
		}
		if s.env[port] != "" {
			otherwise = s.env[port]
		}
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(r.address, otherwise)); err == nil {
			stop = append(stop, start(l))
		}
	}
	switch {
	case s.env["TCP_ECHO_SERVER"] != "":
		open("TCP_PORT", "3000", s.lines)
		if s.tls != nil {
			open("TLS_PORT", "8443", func(l net.Listener) func() { return s.lines(tls.NewListener(l, s.tls)) })
		}
	case s.env["GRPC_ECHO_SERVER"] != "":
		open("HTTP_PORT", "3000", s.grpc())
		if s.tls != nil {
			open("HTTPS_PORT", "8443", s.grpc(grpc.Creds(credentials.NewTLS(s.tls))))
		}
	default:
		h2c := new(http.Protocols)
		h2c.SetUnencryptedHTTP2(true)
		open("HTTP_PORT", "3000", web(&http.Server{Handler: s}))
		open("H2C_PORT", "3001", web(&http.Server{Handler: http.HandlerFunc(s.echo), Protocols: h2c}))
		if s.tls != nil {
			open("HTTPS_PORT", "8443", web(&http.Server{Handler: s, TLSConfig: s.tls}))
		}
	}
	if err != nil {
		stopAll(stop)
		return nil, err
	}
	return stop, nil
}

// tlsOf reads the certificate of a Pod from the files that its environment names.
func (c *cluster) tlsOf(ctx context.Context, p *corev1.Pod, env map[string]string) (*tls.Config, error) {
	key := cmp.Or(env["TLS_SERVER_PRIVKEY"], env["TLS_SERVER_PRIV_KEY"]) // the suite uses both
	if key == "" || env["TLS_SERVER_CERT"] == "" {
		return nil, nil
	}
	cert, err := c.file(ctx, p, env["TLS_SERVER_CERT"])
	if err != nil {
		return nil, err
	}
	private, err := c.file(ctx, p, key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, private)
	if err != nil {
		return nil, err
	}
	t := &tls.Config{Certificates: []tls.Certificate{pair}}
	if name := env["TLS_CLIENT_CACERTS"]; name != "" {
		ca, err := c.file(ctx, p, name)
		if err != nil {
			return nil, err
		}
		t.ClientCAs, t.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
		if !t.ClientCAs.AppendCertsFromPEM(ca) {
			return nil, fmt.Errorf("%s has no certificate", name)
		}
	}
	return t, nil
}

// file reads a file of a volume of a Pod.
func (c *cluster) file(ctx context.Context, p *corev1.Pod, name string) ([]byte, error) {
	for _, m := range p.Spec.Containers[0].VolumeMounts {
		key, ok := strings.CutPrefix(name, strings.TrimSuffix(m.MountPath, "/")+"/")
		if !ok {
			continue
		}
		for i := range p.Spec.Volumes {
			if p.Spec.Volumes[i].Name != m.Name {
				continue
			}
			data, items, err := c.volume(ctx, p.Namespace, &p.Spec.Volumes[i])
			if err != nil {
				return nil, err
			}
			for _, item := range items {
				if item.Path == key {
					key = item.Key
					break
				}
			}
			if content, ok := data[key]; ok {
				return content, nil
			}
		}
	}
	return nil, fmt.Errorf("the Pod has no file %s", name)
}

// volume returns the content of a Secret or a ConfigMap.
func (c *cluster) volume(ctx context.Context, namespace string, v *corev1.Volume) (map[string][]byte, []corev1.KeyToPath, error) {
	switch {
	case v.Secret != nil:
		s, err := c.api.CoreV1().Secrets(namespace).Get(ctx, v.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		return s.Data, v.Secret.Items, nil
	case v.ConfigMap != nil:
		m, err := c.api.CoreV1().ConfigMaps(namespace).Get(ctx, v.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return nil, nil, err
		}
		data := map[string][]byte{}
		for name, text := range m.Data {
			data[name] = []byte(text)
		}
		return data, v.ConfigMap.Items, nil
	}
	return nil, nil, nil
}

// ServeHTTP answers over HTTP/1.1, and HTTP/2 with TLS.
func (s *suitePod) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	switch p := strings.ReplaceAll(q.URL.Path, "//", "/"); {
	case p == "/ws":
		websocket.Server{Handler: func(c *websocket.Conn) { io.Copy(c, c) }}.ServeHTTP(w, q)
	case strings.HasPrefix(p, "/status/"):
		code, err := strconv.Atoi(path.Base(p))
		if err != nil || code < 200 || code > 599 {
			code = http.StatusBadRequest
		}
		w.WriteHeader(code)
	case strings.HasPrefix(p, "/retry/"):
		s.retry(w, q)
	default:
		s.echo(w, q)
	}
}

// wait waits as long as a parameter of a request says.
func wait(q *http.Request, parameter string) {
	if d, err := time.ParseDuration(q.URL.Query().Get(parameter)); err == nil {
		select {
		case <-time.After(d):
		case <-q.Context().Done():
		}
	}
}

// retry fails the first requests with one uuid: with a status, or by a reset of the connection.
func (s *suitePod) retry(w http.ResponseWriter, q *http.Request) {
	parameters := q.URL.Query()
	id := parameters.Get("uuid")
	n, err := strconv.Atoi(parameters.Get("succeedAfter"))
	if id == "" || err != nil {
		http.Error(w, "uuid and succeedAfter are required", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	fail := s.tries[id] < n
	if fail {
		s.tries[id]++
	}
	s.mu.Unlock()
	if !fail {
		s.echo(w, q)
		return
	}
	wait(q, "delayRetry")
	if code, err := strconv.Atoi(parameters.Get("responseCode")); err == nil {
		w.WriteHeader(code)
		return
	}
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if t, ok := c.(*net.TCPConn); ok {
		t.SetLinger(0)
	}
	c.Close()
}

// echo answers with the request, and with the response headers that the request asks for.
func (s *suitePod) echo(w http.ResponseWriter, q *http.Request) {
	s.log.printf("Echoing back request made to %s to client (%s)", q.RequestURI, q.RemoteAddr)
	wait(q, "delay")
	answer := map[string]any{"path": q.RequestURI, "host": q.Host, "method": q.Method, "proto": q.Proto, "headers": q.Header, "httpPort": portHTTP,
		"namespace": s.env["NAMESPACE"], "service": s.env["SERVICE_NAME"], "pod": s.env["POD_NAME"]}
	if q.TLS != nil {
		answer["tls"] = map[string]any{"version": versionOf(q.TLS), "peerCertificates": peersOf(q.TLS), "serverName": q.TLS.ServerName,
			"negotiatedProtocol": q.TLS.NegotiatedProtocol, "cipherSuite": tls.CipherSuiteName(q.TLS.CipherSuite)}
	}
	h := w.Header()
	for _, list := range q.Header["X-Echo-Set-Header"] {
		for pair := range strings.SplitSeq(list, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(pair), ":")
			if old := h[name]; len(old) > 0 { // the name keeps its case
				h[name] = []string{old[0] + "," + strings.TrimSpace(value)}
			} else {
				h[name] = []string{value}
			}
		}
	}
	h.Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer)
}

func versionOf(s *tls.ConnectionState) string {
	return "TLSv" + strings.TrimPrefix(tls.VersionName(s.Version), "TLS ")
}

func peersOf(s *tls.ConnectionState) (all []string) {
	for _, c := range s.PeerCertificates {
		all = append(all, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})))
	}
	return all
}

// grpc serves the methods Echo and EchoTwo of the suite's service.
func (s *suitePod) grpc(o ...grpc.ServerOption) func(net.Listener) func() {
	return func(l net.Listener) func() {
		server := grpc.NewServer(append(o, grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(s.call))...)
		go server.Serve(l)
		return server.Stop
	}
}

// bytesCodec lets handlers read and write messages as bytes.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "bytes" }

func (bytesCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}

func (s *suitePod) call(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	switch method {
	case echoService + "Echo", echoService + "EchoTwo":
	default:
		return status.Errorf(codes.Unimplemented, "there is no method %s", method)
	}
	var request []byte
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	s.log.printf("Received %s", method)
	return stream.SendMsg(s.grpcAnswer(stream.Context(), method))
}

const echoService = "/gateway_api_conformance.echo_basic.grpcecho.GrpcEcho/"

// grpcAnswer returns an EchoResponse of the suite's grpcecho.proto (sigs.k8s.io/gateway-api/conformance/echo-basic).
func (s *suitePod) grpcAnswer(ctx context.Context, method string) []byte {
	var assertions protobuf
	assertions.text(1, method)
	received, _ := metadata.FromIncomingContext(ctx)
	for name, values := range received {
		for _, value := range values {
			var header protobuf
			header.text(1, name)
			header.text(2, value)
			assertions.message(2, header)
			if name == ":authority" {
				assertions.text(3, value)
			}
		}
	}
	var of protobuf
	of.text(1, s.env["NAMESPACE"])
	of.text(3, s.env["SERVICE_NAME"])
	of.text(4, s.env["POD_NAME"])
	assertions.message(4, of)
	if p, ok := peer.FromContext(ctx); ok {
		if t, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			var security protobuf
			security.text(1, versionOf(&t.State))
			security.text(2, t.State.NegotiatedProtocol)
			security.text(3, t.State.ServerName)
			security.text(4, tls.CipherSuiteName(t.State.CipherSuite))
			for _, c := range peersOf(&t.State) {
				security.text(5, c)
			}
			assertions.message(5, security)
		}
	}
	var response protobuf
	response.message(1, assertions)
	return response
}

// protobuf is a message while it is encoded.
type protobuf []byte

func (m *protobuf) message(field protowire.Number, part []byte) {
	*m = protowire.AppendBytes(protowire.AppendTag(*m, field, protowire.BytesType), part)
}

func (m *protobuf) text(field protowire.Number, text string) { m.message(field, []byte(text)) }

// lines greets each client, and answers the lines TEST, IS_TLS and PING.
func (s *suitePod) lines(l net.Listener) func() {
	return eachConnection(l, func(c net.Conn) {
		answer := map[string]any{"namespace": s.env["NAMESPACE"], "service": s.env["SERVICE_NAME"], "pod": s.env["POD_NAME"], "tcpport": portHTTP, "tlsport": "8443", "isTLS": false}
		if t, ok := c.(*tls.Conn); ok {
			if t.Handshake() != nil {
				return
			}
			state := t.ConnectionState()
			answer["isTLS"] = true
			answer["tls"] = map[string]string{"version": tls.VersionName(state.Version), "serverName": state.ServerName,
				"negotiatedProtocol": state.NegotiatedProtocol, "cipherSuite": tls.CipherSuiteName(state.CipherSuite)}
		}
		fmt.Fprintln(c, "Gateway API Test TCP Server")
		for in := bufio.NewScanner(c); in.Scan(); {
			switch in.Text() {
			case "TEST":
				json.NewEncoder(c).Encode(answer)
			case "IS_TLS":
				fmt.Fprintln(c, answer["isTLS"])
			case "PING":
				fmt.Fprintln(c, "PONG")
			}
		}
	})
}

// serveDNS answers each question without records, as the image of CoreDNS in the suite might do.
func serveDNS(r *pod) (stop []func(), err error) {
	u, err := net.ListenPacket("udp", net.JoinHostPort(r.address, "53"))
	if err != nil {
		return nil, err
	}
	go func() {
		for b := make([]byte, 64<<10); ; {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			if n >= 12 {
				b[2] |= 0x80 // the question becomes a response
				u.WriteTo(b[:n], from)
			}
		}
	}()
	return []func(){func() { u.Close() }}, nil
}
