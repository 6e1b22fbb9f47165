package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/trace"
)

// tracing sends the spans of traced requests to a receiver; nil: there are no traces.
type tracing struct {
	buffer   *trace.Buffer
	exporter *trace.Exporter
	client   *http.Client
	of       config.Traces
	node     string
}

// spanBuffer limits the spans that wait for their receiver, in bytes.
const spanBuffer = 8 << 20

// adoptTraces puts the traces of a configuration into effect, without waiting. If the receiver stays the
// same, the exporter goes on.
func (s *server) adoptTraces(cfg *config.Config) {
	before, want := s.tracing, cfg.Traces
	if want == nil {
		s.tracing = nil
		s.proxy.SetTracer(nil)
		s.endTracing(before)
		return
	}
	if before == nil || !reflect.DeepEqual(before.of.OTLP, want.OTLP) || before.of.Service != want.Service || before.node != cfg.Node {
		s.tracing = s.startTracing(*want, cfg.Node)
		defer s.endTracing(before)
	}
	s.tracing.of = *want
	var redact []string
	if a := cfg.AccessLog; a != nil {
		redact = a.Redact
	}
	s.proxy.SetTracer(trace.NewTracer(want.Sample, redact, s.tracing.buffer))
}

func (s *server) endTracing(t *tracing) {
	if t == nil {
		return
	}
	s.closingLines.Go(func() {
		t.close()
		s.lasting.ends(t)
	})
}

// close sends the rest of the spans, within two seconds.
func (t *tracing) close() {
	t.exporter.Close()
	t.client.CloseIdleConnections()
}

func (s *server) startTracing(c config.Traces, node string) *tracing {
	t := &tracing{buffer: trace.NewBuffer(spanBuffer, s.metrics.spans.WithLabelValues("full")), client: newReceiverClient(c.OTLP), node: node}
	to, grpc := c.OTLP.Requests()
	t.exporter = trace.StartExporter(t.buffer, trace.ExporterOptions{
		Resource: trace.Resource{Name: c.Service, Version: s.build.Version, Node: node},
		Send: func(ctx context.Context, body []byte) error {
			if grpc {
				return sendGRPC(ctx, t.client, to, c.OTLP.Headers, body)
			}
			return sendHTTP(ctx, t.client, to, c.OTLP.Headers, body)
		},
		Failed: func(err error) {
			s.lasting.begins(t, "spans cannot be sent to the receiver of traces (traces.otlp): "+cut(err.Error()))
			s.log.Warn("spans cannot be sent to the receiver of traces (traces.otlp)", zap.String("url", c.OTLP.URL), zap.Error(err))
		},
		Recovered: func() {
			s.lasting.ends(t)
			s.log.Info("the receiver of traces takes spans again", zap.String("url", c.OTLP.URL))
		},
		Exported: s.metrics.spans.WithLabelValues("exported"), Refused: s.metrics.spans.WithLabelValues("refused"),
		Unavailable: s.metrics.spans.WithLabelValues("unavailable"),
	})
	return t
}

// newReceiverClient makes the client for a receiver of spans. It follows no redirects and uses no
// proxy of the environment. So spans reach only the URL in the configuration.
func newReceiverClient(o *config.OTLP) *http.Client {
	t := &http.Transport{DialContext: (&net.Dialer{Timeout: 5 * time.Second}).DialContext, TLSHandshakeTimeout: 5 * time.Second, MaxIdleConns: 1, IdleConnTimeout: time.Minute}
	if len(o.CAPool) > 0 {
		t.TLSClientConfig = &tls.Config{RootCAs: x509.NewCertPool()}
		t.TLSClientConfig.RootCAs.AppendCertsFromPEM(o.CAPool) // config has checked it
	}
	if _, grpc := o.Requests(); grpc {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetHTTP2(true)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// mostAnswer limits what weir reads of a receiver's response, in bytes.
const mostAnswer = 64 << 10

// sendHTTP sends spans by OTLP over HTTP.
func sendHTTP(ctx context.Context, client *http.Client, to string, headers []config.SecretHeader, body []byte) error {
	res, answer, err := post(ctx, client, to, "application/x-protobuf", headers, body)
	if err != nil {
		return &trace.RetryError{Err: err}
	}
	switch res.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return trace.Refused(answer)
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &trace.RetryError{Err: fmt.Errorf("the receiver answered %s", res.Status), After: retryAfter(res)}
	}
	return fmt.Errorf("the receiver answered %s; spans go to %s", res.Status, to)
}

// retryAfter returns the wait that a response asks for; 0: it does not say.
func retryAfter(res *http.Response) time.Duration {
	n, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	return time.Duration(max(n, 0)) * time.Second
}

// sendGRPC sends spans by OTLP over gRPC: one unary call over HTTP/2.
func sendGRPC(ctx context.Context, client *http.Client, to string, headers []config.SecretHeader, body []byte) error {
	framed := make([]byte, 0, 5+len(body))
	framed = binary.BigEndian.AppendUint32(append(framed, 0), uint32(len(body))) // not compressed
	res, answer, err := post(ctx, client, to, "application/grpc", headers, append(framed, body...))
	if err != nil {
		return &trace.RetryError{Err: err}
	}
	status, text := res.Trailer.Get("Grpc-Status"), res.Trailer.Get("Grpc-Message")
	if status == "" { // a response without messages has only one head
		status, text = res.Header.Get("Grpc-Status"), res.Header.Get("Grpc-Message")
	}
	switch {
	case res.StatusCode != http.StatusOK:
		return &trace.RetryError{Err: fmt.Errorf("the receiver answered %s", res.Status)}
	case status == "0":
		return trace.Refused(answer[min(len(answer), 5):])
	}
	err = fmt.Errorf("the receiver answered with the gRPC status %s: %s", status, cut(text))
	switch status {
	case "1", "4", "8", "10", "11", "14", "15": // as OTLP lists them; 8 only with a time, which weir does not need
		return &trace.RetryError{Err: err}
	}
	return err
}

// post sends a request and reads the response, with its trailers. answer is its body.
func post(ctx context.Context, client *http.Client, to, kind string, headers []config.SecretHeader, body []byte) (res *http.Response, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set("User-Agent", "weir")
	if kind == "application/grpc" {
		req.Header.Set("Te", "trailers")
	}
	for _, h := range headers {
		req.Header.Set(h.Name, string(h.Value))
	}
	res, err = client.Do(req)
	if err != nil {
		return nil, nil, withoutURL(err)
	}
	defer res.Body.Close()
	if answer, err = io.ReadAll(io.LimitReader(res.Body, mostAnswer)); err != nil {
		return nil, nil, err
	}
	return res, answer, nil
}

// withoutURL removes the URL from an error of net/http, because the log line has the URL already.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
