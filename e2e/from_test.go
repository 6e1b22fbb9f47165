package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"
)

// The pages docs/from-*.md show configurations of another proxy and of weir, under one heading. Each test here
// starts both with the blocks of the page in front of the same endpoints, and sends both the same requests.

// fromPair is what the test does with the two configurations under a heading.
type fromPair struct {
	heading  string
	asked    []string          // HTTP headers of requests whose values an endpoint has to get
	answered []string          // HTTP headers of responses that clients have to get
	down     string            // an endpoint that refuses connections
	sick     string            // an endpoint whose /healthz answers 503
	replaced map[string]string // long times of the page, and those of the test
	tries    []try
}

// try is a request, and its result: the status, what the endpoint got, and values of HTTP headers.
type try struct {
	from  string // the client's address
	proxy string // the client's address in a PROXY header, if the client sends one
	url   string
	lines []string
	body  int // size
	times int // more than one: the result has the different results, in alphabetical order
	// settles means that the result may need a moment after the start.
	settles bool
	do      func(*side) string // in place of the request
	want    string
	peer    string // the other proxy's result, if it differs
}

// Documentation networks of the pages, and networks on loopback that take their place.
var (
	toLoopback   = strings.NewReplacer("203.0.113.", "127.0.113.", "198.51.100.", "127.51.100.", "192.0.2.", "127.0.2.")
	fromLoopback = strings.NewReplacer("127.0.113.", "203.0.113.", "127.51.100.", "198.51.100.", "127.0.2.", "192.0.2.")
)

const fromAnywhere = "198.51.100.9"

// side is weir or the other proxy.
type side struct {
	t     *testing.T
	name  string
	ports map[string]string // the addresses of the test, by the ports of the page
}

// at returns the address in place of a port of the page.
func (s *side) at(port string) string {
	if s.ports[port] == "" {
		s.ports[port] = freePort(s.t)
	}
	return s.ports[port]
}

// client returns a client that connects to this proxy, whatever the host, as try says.
func (s *side) client(r try) *http.Client {
	from := r.from
	if from == "" {
		from = fromAnywhere
	}
	dial := func(ctx context.Context, _, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address)
		d := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(toLoopback.Replace(from))}}
		c, err := d.DialContext(ctx, "tcp", s.at(port))
		if err == nil && r.proxy != "" {
			c = &headedConn{c, v1Header(toLoopback.Replace(r.proxy)+":4711", "192.0.2.1:443")}
		}
		return c, err
	}
	return &http.Client{
		Timeout:       patience,
		Transport:     &http.Transport{DialContext: dial, DisableKeepAlives: true, DisableCompression: true, ExpectContinueTimeout: patience, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// headedConn is a connection that sends a header together with the first bytes: a client that gets a response
// before its request would take it for a fault.
type headedConn struct {
	net.Conn
	header []byte
}

func (c *headedConn) Write(b []byte) (int, error) {
	header := c.header
	c.header = nil
	n, err := c.Conn.Write(append(header, b...))
	return max(0, n-len(header)), err
}

// send sends the request of a try.
func (s *side) send(r try) (*http.Response, seen, error) {
	method, body := "GET", io.Reader(nil)
	if r.body > 0 {
		method, body = "POST", bytes.NewReader(pattern(r.body))
	}
	request, err := http.NewRequest(method, r.url, body)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, line := range r.lines {
		name, value, _ := strings.Cut(toLoopback.Replace(line), ": ")
		request.Header.Add(name, value)
	}
	resp, err := s.client(r).Do(request)
	if err != nil {
		return nil, seen{}, err
	}
	defer resp.Body.Close()
	text, content := []byte(nil), io.Reader(resp.Body)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if content, err = gzip.NewReader(content); err != nil {
			return nil, seen{}, err
		}
	}
	if text, err = io.ReadAll(content); err != nil {
		return nil, seen{}, err
	}
	var got seen
	json.Unmarshal(text, &got) // responses of proxies are no reports
	return resp, got, nil
}

// result describes the response of a try.
func (s *side) result(p fromPair, r try) string {
	if r.do != nil {
		return r.do(s)
	}
	resp, got, err := s.send(r)
	if err != nil {
		return err.Error()
	}
	words := []string{fmt.Sprint(resp.StatusCode)}
	if got.Backend != "" {
		words = append(words, got.Backend, got.Host+got.URI)
		for _, name := range p.asked {
			words = append(words, name+"="+strings.Join(got.Header.Values(name), ","))
		}
	}
	for _, name := range p.answered {
		value := strings.Join(resp.Header.Values(name), ",")
		if name == "Retry-After" {
			value = anyNumber.ReplaceAllString(value, "N") // it depends on how long the requests before took
		}
		if value != "" {
			words = append(words, name+"="+value)
		}
	}
	return fromLoopback.Replace(strings.Join(words, " "))
}

// results are the different results of all requests of a try.
func (s *side) results(p fromPair, r try) string {
	var all []string
	for range max(1, r.times) {
		all = append(all, s.result(p, r))
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// check sends the requests of all tries.
func (s *side) check(p fromPair) {
	for _, r := range p.tries {
		want := r.want
		if s.name != "weir" && r.peer != "" {
			want = r.peer
		}
		if !r.settles {
			if got := s.results(p, r); got != want {
				s.t.Errorf("%s: %s %q: %s; want %s", s.name, r.url, r.lines, got, want)
			}
			continue
		}
		eventually(s.t, s.name+" "+r.url, func() error {
			if got := s.results(p, r); got != want {
				return fmt.Errorf("%s; want %s", got, want)
			}
			return nil
		})
	}
}

var (
	fromHeading  = regexp.MustCompile(`(?m)^## `)
	fromBlock    = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```")
	fromEndpoint = regexp.MustCompile(`10\.0\.0\.\d+:\d+`)
	weirPort     = regexp.MustCompile(`":(\d+)"`)
	anyNumber    = regexp.MustCompile(`^[1-9]\d*$`)
	peerPort     = regexp.MustCompile(`(?m)(\blisten |\bbind :|^:)(\d+)`)
)

// sections returns the blocks of a page by their headings and languages. The blocks before the first heading
// have the heading "".
func sections(t *testing.T, page string) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for i, part := range fromHeading.Split(string(text), -1) {
		heading, _, _ := strings.Cut(part, "\n")
		if i == 0 {
			heading = ""
		}
		blocks := map[string]string{}
		for _, m := range fromBlock.FindAllStringSubmatch(part, -1) {
			blocks[m[1]] += m[2]
		}
		if len(blocks) > 0 {
			all[heading] = blocks
		}
	}
	return all
}

// compare tests all pairs of a page. start runs the other proxy with a configuration.
func compare(t *testing.T, page, language string, pairs []fromPair, start func(s *side, dir, config string)) {
	long(t)
	t.Parallel()
	needLinux(t)
	blocks := sections(t, page)
	common := blocks[""][language]
	delete(blocks, "")
	for _, p := range pairs {
		block := blocks[p.heading]
		delete(blocks, p.heading) // what is left has no test
		t.Run(strings.ReplaceAll(p.heading, ",", ""), func(t *testing.T) {
			if block["yaml"] == "" || block[language] == "" {
				t.Fatalf("%s has no %s and yaml under %q", page, language, p.heading)
			}
			t.Parallel()
			w := newWeir(t)
			w.env = []string{"WEIR_STICKY_KEY=" + strings.Repeat("k", 32)}
			adapt := prepare(t, w.dir, p)
			s := &side{t, language, map[string]string{}}
			start(s, w.dir, adapt(common+block[language]))
			s.check(p)
			s = &side{t, "weir", map[string]string{}}
			w.start(weirPort.ReplaceAllStringFunc(adapt(block["yaml"]), func(port string) string { return "'" + s.at(strings.Trim(port, `":`)) + "'" }))
			if w.linesWith(`"warn"`, "weir.yaml") != w.linesWith("the certificate expires") { // the test's has a day left
				t.Errorf("weir warns of the configuration:\n%s", &w.log)
			}
			s.check(p)
		})
	}
	for heading := range blocks {
		t.Errorf("no test uses the configurations under %q in %s", heading, page)
	}
}

// prepare writes the files that configurations name, and starts the endpoints. It returns a function that puts
// their paths and addresses into a configuration.
func prepare(t *testing.T, dir string, p fromPair) func(config string) string {
	t.Helper()
	for _, folder := range []string{"ssl", "haproxy"} {
		if err := os.MkdirAll(filepath.Join(dir, "etc", folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeCertificate(t, filepath.Join(dir, "etc/ssl"), "app", false, "app.example.org")
	if err := os.WriteFile(filepath.Join(dir, "etc/users.htpasswd"), []byte(staffUsers), 0o644); err != nil {
		t.Fatal(err)
	}
	endpoints := map[string]string{p.down: freePort(t)}
	return func(config string) string {
		for long, short := range p.replaced {
			config = strings.ReplaceAll(config, long, short)
		}
		config = fromEndpoint.ReplaceAllStringFunc(config, func(page string) string {
			if endpoints[page] == "" {
				endpoints[page] = newPageEndpoint(t, page, page == p.sick)
			}
			return endpoints[page]
		})
		return toLoopback.Replace(strings.ReplaceAll(config, "/etc/", dir+"/etc/"))
	}
}

// newPageEndpoint starts an endpoint of a page: a web server, with TLS on port 8443, or on port 5432 a server that
// sends back what it gets. It returns its address.
func newPageEndpoint(t *testing.T, page string, sick bool) string {
	t.Helper()
	switch {
	case strings.HasSuffix(page, ":5432"):
		return newEchoBackend(t).address
	case strings.HasSuffix(page, ":8443"):
		server := httptest.NewTLSServer(&webBackend{name: page})
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	b := newWebBackend(t, page)
	b.sick.Store(sick)
	return b.address
}

// startListed starts HAProxy or nginx, whose configurations have the ports that they listen on.
func startListed(s *side, dir, config string) {
	config = peerPort.ReplaceAllStringFunc(config, func(line string) string {
		m := peerPort.FindStringSubmatch(line)
		return strings.TrimSuffix(m[1], ":") + s.at(m[2])
	})
	p := runProxy(s.t, s.name, dir, config)
	for _, address := range s.ports {
		p.listening(address)
	}
}

// echoes is the result of a WebSocket that repeats a message.
func echoes(url string) func(*side) string {
	return func(s *side) string {
		ctx, cancel := context.WithTimeout(s.t.Context(), patience)
		defer cancel()
		c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPClient: s.client(try{})})
		if err != nil {
			return err.Error()
		}
		defer c.CloseNow()
		if err := c.Write(ctx, websocket.MessageText, []byte("hello")); err != nil {
			return err.Error()
		}
		_, got, err := c.Read(ctx)
		return fmt.Sprint(string(got), " ", err)
	}
}

// tunnels is the result of a TCP connection to a server that sends back what it gets.
func tunnels(port string) func(*side) string {
	return func(s *side) string {
		c := dial(s.t, s.at(port))
		defer c.Close()
		got := make([]byte, 5)
		fmt.Fprint(c, "hello")
		_, err := io.ReadFull(c, got)
		return fmt.Sprint(string(got), " ", err)
	}
}

// sticks is the result of ten requests with the cookie of a first response.
func sticks(url, cookie string) func(*side) string {
	return func(s *side) string {
		resp, first, err := s.send(try{url: url})
		if err != nil || len(resp.Cookies()) != 1 || resp.Cookies()[0].Name != cookie {
			return fmt.Sprint(resp, err)
		}
		value := cookie + "=" + resp.Cookies()[0].Value
		for range 10 {
			resp, next, err := s.send(try{url: url, lines: []string{"Cookie: " + value}})
			if err != nil || next.Backend != first.Backend || len(resp.Cookies()) != 0 {
				return fmt.Sprint(next.Backend, " after ", first.Backend, resp, err)
			}
			if got := next.Header.Get("Cookie"); got != "" && got != value {
				return "the endpoint gets the cookie " + got
			}
		}
		return "sticks"
	}
}

const app1, app2, app3 = "10.0.0.11:8080", "10.0.0.12:8080", "10.0.0.13:8080"
