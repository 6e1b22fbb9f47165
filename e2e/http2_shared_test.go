package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// One client cancels its requests as fast as it can, while their responses arrive. Other
// clients whose responses use the same connection to the endpoint get them complete. An
// older weir ended that connection, because the endpoint sent frames on cancelled streams.
func TestCancelledRequestsSpareOtherClients(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	l, err := net.Listen("tcp", freePort(t))
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: &protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		flush := w.(http.Flusher).Flush
		if r.URL.Path == "/wait" {
			io.WriteString(w, "begun ")
			flush()
			<-release
			io.WriteString(w, "and ended")
			return
		}
		for range 300 { // sends many small frames
			if _, err := w.Write(make([]byte, 100)); err != nil {
				return
			}
			flush()
		}
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	w := newWeir(t)
	w.address["app"] = l.Addr().String()
	w.start(strings.Replace(http2Config, "app: {endpoints", "app: {protocol: h2c, endpoints", 1))

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	var others []*http.Response
	for range 5 {
		res, err := client.Get("http://" + w.at("web") + "/wait")
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, res)
	}
	var attackers sync.WaitGroup
	for range 8 {
		attackers.Go(func() {
			for range 60 {
				if err := callOff(w.at("web")); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	attackers.Wait()
	close(release)
	for _, res := range others {
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(body) != "begun and ended" {
			t.Errorf("another client got %q, %v", body, err)
		}
	}
	w.wantMetric(0, "weir_panics_total")
}

// callOff sends a request, and resets its connection when the response begins.
func callOff(address string) error {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	fmt.Fprint(c, "GET /much HTTP/1.1\r\nHost: a\r\n\r\n")
	line, err := bufio.NewReaderSize(c, 16).ReadString(' ')
	if err == nil && line != "HTTP/1.1 " {
		err = fmt.Errorf("the answer begins with %q", line)
	}
	return errors.Join(err, c.(*net.TCPConn).SetLinger(0), c.Close())
}
