package health

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirproxy/weir/listener/header"
)

func servingNode() *Node {
	n := NewNode(func(name string) int { return len(name) }) // "app" has three
	n.SetLoaded(true)
	n.SetBound(true)
	return n
}

// start serves p on a loopback port until the test ends.
func start(t *testing.T, p *Port) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String()
}

// talk sends each piece separately and returns all bytes that come back.
func talk(t *testing.T, address string, pieces ...string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	for _, p := range pieces {
		io.WriteString(c, p)
	}
	c.(*net.TCPConn).CloseWrite()
	answer, _ := io.ReadAll(c)
	return string(answer)
}

const get11 = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

func TestAnswersAreShapedLikeKubeProxys(t *testing.T) {
	n := servingNode()
	n.SetRequireLocal([]string{"app", "ssh"})
	address := start(t, NewPort(n))
	response, err := http.Get("http://" + address + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var body struct {
		Service struct {
			Namespace, Name *string
		}
		LocalEndpoints      *int
		ServiceProxyHealthy *bool
		Verdict             string
		Reasons             *[]string
	}
	if err := json.NewDecoder(response.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	if body.Service.Name == nil || body.Service.Namespace == nil || *body.LocalEndpoints != 6 || !*body.ServiceProxyHealthy ||
		body.Verdict != "healthy" || body.Reasons == nil || len(*body.Reasons) != 0 {
		t.Errorf("body %+v", body)
	}
	for field, want := range map[string]string{
		"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": "6",
	} {
		if got := response.Header.Get(field); got != want || response.StatusCode != 200 {
			t.Errorf("%d, %s: %q, want %q", response.StatusCode, field, got, want)
		}
	}
}

func TestPathsAndStates(t *testing.T) {
	n := servingNode()
	address := start(t, NewPort(n))
	ask := func(method, path string) *http.Response {
		t.Helper()
		answer := talk(t, address, method+" "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%s %s: %v in %q", method, path, err, answer)
		}
		body, err := io.ReadAll(r.Body)
		if (method == "HEAD") != (len(body) == 0) || err != nil {
			t.Errorf("%s %s: body %q, %v", method, path, body, err)
		}
		return r
	}
	f := func(what string, verdict, readyz int) {
		t.Helper()
		for _, path := range []string{"/", "/healthz", "//a/../b//", "/healthz/", "/livez/", "/%2e%2e", "/?x", "*", "http://other.example.org/x"} {
			for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "PUT", "BREW"} {
				if r := ask(method, path); r.StatusCode != verdict {
					t.Errorf("%s: %s %s answered %d, want %d", what, method, path, r.StatusCode, verdict)
				}
			}
		}
		if r := ask("GET", "/livez"); r.StatusCode != 200 {
			t.Errorf("%s: /livez %d", what, r.StatusCode)
		}
		if r := ask("GET", "/readyz"); r.StatusCode != readyz {
			t.Errorf("%s: /readyz %d, want %d", what, r.StatusCode, readyz)
		}
	}
	f("serving", 200, 200)
	if r := ask("GET", "/"); len(r.Header.Values("X-Load-Balancing-Endpoint-Weight")) != 0 {
		t.Error("a weight without require_local")
	}
	n.SetCordoned(true)
	f("cordoned", 503, 200)
	n.SetCordoned(false)
	n.SetDraining(true)
	f("draining", 503, 503)
	n.SetDraining(false)
	n.SetRequireLocal([]string{""}) // this backend has no endpoint
	f("without a local endpoint", 503, 200)
	if r := ask("GET", "/"); r.Header.Get("X-Load-Balancing-Endpoint-Weight") != "0" {
		t.Errorf("fields %v", r.Header)
	}
	n.SetRequireLocal(nil)
	n.SetBound(false)
	f("not bound", 503, 503)
}

func TestOldClientsAreAnswered(t *testing.T) {
	address := start(t, NewPort(servingNode()))
	if a := talk(t, address, "GET /healthz HTTP/1.0\r\n\r\n"); !strings.HasPrefix(a, "HTTP/1.0 200 OK\r\n") || !strings.Contains(a, "localEndpoints") {
		t.Errorf("HTTP/1.0: %q", a)
	}
	if a := talk(t, address, get11[:20], get11[20:]); !strings.HasPrefix(a, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("HTTP/1.1: %q", a)
	}
	if a := talk(t, address); a != "" { // a TCP check
		t.Errorf("to silence it answered %q", a)
	}
}

// The PROXY header of a real health check by a network load balancer: LOCAL, TCP over
// IPv4, and TLVs at the place of the addresses (kubernetes issue 57250).
var nlbProbe, _ = hex.DecodeString("0d0a0d0a000d0a515549540a20110054" + "030004bce5951f" + "04004a" + strings.Repeat("00", 74))

func headers() map[string]string {
	h := header.Header{Source: netip.MustParseAddrPort("198.51.100.1:1"), Destination: netip.MustParseAddrPort("203.0.113.1:2")}
	local := header.Header{Local: true}
	return map[string]string{
		"v1":         string(header.Append(nil, 1, &h, header.Options{})),
		"v1 UNKNOWN": string(header.Append(nil, 1, &local, header.Options{})),
		"v2":         string(header.Append(nil, 2, &h, header.Options{Checksum: true})),
		"v2 LOCAL":   string(header.Append(nil, 2, &local, header.Options{})),
		"NLB probe":  string(nlbProbe),
		"nginx":      "PROXY TCP6 2001:db8::1 192.0.2.1 1000 80\r\n", // addresses of two families
	}
}

func TestHeadersAreOptional(t *testing.T) {
	p := NewPort(servingNode())
	address := start(t, p)
	f := func(from []netip.Prefix, answered bool) {
		t.Helper()
		p.SetFrom(from)
		for name, h := range headers() {
			bytewise := append(strings.Split(h, ""), get11)
			for _, pieces := range [][]string{{h + get11}, {h, get11}, bytewise} {
				got := talk(t, address, pieces...)
				if answered && !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !answered && got != "" {
					t.Errorf("from %v, %s in %d pieces: %q", from, name, len(pieces), got)
				}
			}
			if got := talk(t, address, h); got != "" { // a check that sends its header and closes
				t.Errorf("%s alone: %q", name, got)
			}
		}
		if got := talk(t, address, get11); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") {
			t.Errorf("from %v, bare: %q", from, got)
		}
	}
	f(nil, true)
	f([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8")}, true)
	f([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, false)
	f([]netip.Prefix{}, false)
}

func TestBadHeadersEndWithoutAByte(t *testing.T) {
	address := start(t, NewPort(servingNode()))
	good := headers()
	spoilt := []byte(good["v2"])
	spoilt[20]++
	for _, h := range []string{
		"PROXY TCP4 1.1.1.1 2.2.2.2 1 99999\r\n", "PROXY HTTP\r\n", "PROXY \r\n", string(spoilt),
		good["v2"][:12] + "\x31\x11\x00\x0c", good["v2"][:14], good["v1"][:20],
	} {
		if got := talk(t, address, h+get11); got != "" {
			t.Errorf("%q: %q", h, got)
		}
	}
	if got := talk(t, address, "PROPFIND / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200") {
		t.Errorf("a method that begins like a header: %q", got)
	}
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{} }

func TestSilenceEndsInTime(t *testing.T) {
	f := func(sent string) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			ln := make(pipes)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- NewPort(servingNode()).Serve(ctx, ln) }()
			here, there := net.Pipe()
			ln <- there
			begin := time.Now()
			io.WriteString(here, sent)
			got, _ := io.ReadAll(here)
			if len(got) != 0 || time.Since(begin) != readHeadTimeout {
				t.Errorf("after %q: %q after %v", sent, got, time.Since(begin))
			}
			cancel()
			close(ln)
			<-done
		})
	}
	f("")
	f("PRO")
	f("PROXY TCP4 1.1.1.1 ")
	f("PROXY UNKNOWN\r\n")
	f("\r\n\r\n\x00\r\nQUIT\n\x20")
}

func TestTheOldestGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := make(pipes)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- NewPort(servingNode()).Serve(ctx, ln) }()
		var mine []net.Conn
		for range maxConnections + 1 {
			here, there := net.Pipe()
			ln <- there
			mine = append(mine, here)
		}
		synctest.Wait()
		begin := time.Now()
		if _, err := mine[0].Read(make([]byte, 1)); err != io.EOF || time.Since(begin) != 0 {
			t.Errorf("the oldest reads %v after %v", err, time.Since(begin))
		}
		last := mine[len(mine)-1]
		io.WriteString(last, get11)
		if got, _ := io.ReadAll(last); !bytes.HasPrefix(got, []byte("HTTP/1.1 200 OK")) {
			t.Errorf("the newest got %q", got)
		}
		for _, c := range mine {
			c.Close()
		}
		cancel()
		close(ln)
		<-done
	})
}

func TestPortLeaksNothing(t *testing.T) {
	http.DefaultClient.CloseIdleConnections() // of other tests
	goroutines, open := runtime.NumGoroutine(), descriptors(t)
	for range 10 {
		t.Run("serve", func(t *testing.T) {
			address := start(t, NewPort(servingNode()))
			for range 10 {
				talk(t, address, get11)
				talk(t, address, string(nlbProbe)+get11)
			}
		})
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > goroutines || descriptors(t) > open {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines and %d descriptors, at first %d and %d", runtime.NumGoroutine(), descriptors(t), goroutines, open)
		}
		runtime.Gosched()
	}
}

func descriptors(t *testing.T) int {
	list, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(list)
}

// A separate process opens as many descriptors as it can, and must still answer.
func TestAnswersWithoutDescriptors(t *testing.T) {
	if os.Getenv("WEIR_TEST_EXHAUSTED") != "" {
		exhausted(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestAnswersWithoutDescriptors$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), "WEIR_TEST_EXHAUSTED=1")
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	lines := bufio.NewScanner(stdout)
	address := ""
	for address == "" && lines.Scan() {
		_, address, _ = strings.Cut(lines.Text(), "listening on ")
	}
	// Open connections must not use the descriptors that are reserved for the next check.
	for range 2 * reserved {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET /keep HTTP/1.1\r\nHost: x\r\n")
	}
	for i := range 3 * reserved {
		for _, h := range []string{"", string(nlbProbe)} {
			if got := talk(t, address, h+get11); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.Contains(got, "Connection: close") {
				t.Fatalf("check %d: %q", i, got)
			}
		}
	}
	io.WriteString(stdin, "free\n")
	for lines.Scan() && !strings.Contains(lines.Text(), "freed") {
	}
	if got := talk(t, address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") {
		t.Errorf("after the descriptors came back: %q", got)
	}
}

func exhausted(t *testing.T) {
	fmt.Println() // end the line of -test.v
	limit := unix.Rlimit{Cur: 128, Max: 128}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	address := start(t, NewPort(servingNode()))
	talk(t, address, get11) // the port answers, so it has its reserve
	var hoard []int
	for {
		fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		hoard = append(hoard, fd)
	}
	fmt.Println("listening on " + address)
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	for _, fd := range hoard {
		syscall.Close(fd)
	}
	fmt.Println("freed")
	in.Scan()
}

// A port that another process takes over closes its socket at once. A check on an open connection still gets its
// answer, and then the connection ends.
func TestMove(t *testing.T) {
	p := NewPort(servingNode())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Serve(ctx, ln) }()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	ask := func(last bool) {
		t.Helper()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != 200 || resp.Close != last {
			t.Errorf("%s, the last one: %t", resp.Status, resp.Close)
		}
	}
	ask(false)
	p.Move()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if other, err := net.Dial("tcp", ln.Addr().String()); err == nil {
		other.Close()
		t.Error("the port is open")
	}
	brief, end := context.WithTimeout(context.Background(), 2*awaitInterval)
	defer end()
	if p.Await(brief); brief.Err() == nil {
		t.Error("it does not wait for the connection")
	}
	ask(true)
	if _, err := r.ReadByte(); err != io.EOF {
		t.Errorf("the connection does not end: %v", err)
	}
	p.Await(context.Background())
}
