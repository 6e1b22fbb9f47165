package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	pb "google.golang.org/grpc/interop/grpc_testing"
)

// newOldServer is a server that knows no 100 Continue, as servers of HTTP/1.0: it reads the body and answers with its length.
func newOldServer(t *testing.T) (address string) {
	t.Helper()
	ln, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				r := bufio.NewReader(c)
				q, err := http.ReadRequest(r)
				if err != nil {
					return
				}
				n, _ := io.Copy(io.Discard, q.Body)
				fmt.Fprintf(c, "HTTP/1.0 200 OK\r\n\r\ngot %d", n)
			}()
		}
	}()
	return ln.Addr().String()
}

// Clients that wait for 100 Continue for ever, and an endpoint that never says it.
func TestUploadWaitsForContinueThatNeverComes(t *testing.T) {
	t.Parallel()
	w := newWeir(t)
	w.address["app"] = newOldServer(t)
	w.start(webConfig)
	for _, args := range [][]string{
		{"http://" + w.at("web") + "/up"},
		{"--no-alpn", "https://" + w.at("secure") + "/up"},
		{"--http2", "https://" + w.at("secure") + "/up"},
		{"-H", "Transfer-Encoding: chunked", "http://" + w.at("web") + "/up"},
	} {
		out := curl(t, append([]string{"--expect100-timeout", "60", "-H", "Expect: 100-continue", "-d", "hello"}, args...)...)
		if string(out) != "got 5" {
			t.Errorf("curl %v got %q", args, out)
		}
	}
	java := need(t, "java")
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, java, "-XX:TieredStopAtLevel=1", "-Xshare:auto", "testdata/Expects.java", "http://"+w.at("web")+"/up").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "200 got 5") {
		t.Errorf("java: %v %s", err, out)
	}
}

// docker exec sends a body with its upgrade. The server gets it before the stream begins.
func TestDockerExecThroughWeir(t *testing.T) {
	t.Parallel()
	const start = `{"Detach":false,"Tty":true}`
	ln, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	daemon := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if string(body) != start || err != nil || r.Header.Get("Upgrade") != "tcp" {
			http.Error(rw, fmt.Sprintf("%q %v", body, r.Header), http.StatusBadRequest)
			return
		}
		c, both, err := rw.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n# ")
		io.Copy(c, both)
	})}
	go daemon.Serve(ln)
	t.Cleanup(func() { daemon.Close() })
	w := newWeir(t)
	w.address["app"] = ln.Addr().String()
	w.start(webConfig)
	q, _ := http.NewRequest("POST", "http://"+w.at("web")+"/v1.46/exec/ID/start", strings.NewReader(start))
	q.Header = http.Header{"Content-Type": {"application/json"}, "Connection": {"Upgrade"}, "Upgrade": {"tcp"}}
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) { // a Timeout of the client would hide the stream
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil {
			c.SetDeadline(time.Now().Add(patience))
		}
		return c, err
	}}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	stream, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != 101 || !ok {
		t.Fatalf("docker exec got %s", res.Status)
	}
	got := make([]byte, len("# id\n"))
	io.WriteString(stream, "id\n")
	if _, err := io.ReadFull(stream, got); err != nil || string(got) != "# id\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// With the default times, a long poll, server-sent events and gRPC calls may be silent for longer than a minute.
func TestStreamsThatAreSilentForMoreThanAMinute(t *testing.T) {
	long(t)
	t.Parallel()
	const silence = 70 * time.Second
	ln, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	app := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/events" {
			io.WriteString(rw, "data: 1\n\n")
			rw.(http.Flusher).Flush()
		}
		select {
		case <-time.After(silence):
			io.WriteString(rw, "data: 2\n\n")
		case <-r.Context().Done():
		}
	})}
	go app.Serve(ln)
	t.Cleanup(func() { app.Close() })
	w, api := newWeir(t), newGRPCBackend(t)
	w.address["app"], w.address["api"] = ln.Addr().String(), api.address
	w.start(strings.NewReplacer("  - {listeners: [web, secure, edge]", "  - {listeners: [web, secure], hosts: [api.example.org], backend: api}\n  - {listeners: [web, secure, edge]",
		"backends:\n", "backends:\n  api: {protocol: grpc, endpoints: ['@api']}\n", "hosts: [app.example.org]", "hosts: [app.example.org, api.example.org]").Replace(webConfig))

	program, done := need(t, "curl"), make(chan string, 4)
	for path, want := range map[string]string{"/events": "data: 1\n\ndata: 2\n\n", "/poll": "data: 2\n\n"} {
		for _, version := range []string{"--http1.1", "--http2"} {
			go func() {
				out, err := exec.Command(program, "-sk", version, "--max-time", "120", "https://"+w.at("secure")+path).CombinedOutput()
				done <- strings.TrimPrefix(fmt.Sprintf("curl %s %s: %v %q", version, path, err, out), fmt.Sprintf("curl %s %s: <nil> %q", version, path, want))
			}()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), silence+2*patience)
	defer cancel()
	client := grpcClientFor(t, w.at("secure"), "api.example.org")
	silent, err := client.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for range 4 {
		if failed := <-done; failed != "" {
			t.Error(failed)
		}
	}
	if d := time.Since(begun); d < silence {
		t.Errorf("the silence lasted %v", d)
	}
	if err := silent.Send(&pb.StreamingOutputCallRequest{ResponseParameters: []*pb.ResponseParameters{{Size: 1}}}); err != nil {
		t.Error(err)
	}
	if _, err := silent.Recv(); err != nil {
		t.Error("a call that was silent: ", err)
	}
	silent.CloseSend()
}
