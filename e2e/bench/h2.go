package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// The files for the load by HTTP/2 over TLS.
const (
	pathSmall  = "/"
	pathMedium = "/10k"
	pathLarge  = "/1m"
	pathJSON   = "/json" // all proxies compress it
	pathUpload = "/upload"
	pathCall   = "/grpc/Call"
)

// h2Row returns a row of h2load over TLS, with this many connections and streams on each.
func h2Row(key, name, path string, connections, streams int) row {
	return row{Key: key, Name: name, secure: true, path: path, port: func(s setup) int { return s.TLSPort },
		load: func(s setup, r row, d time.Duration) []string { return h2load(s, r, d, connections, streams) }}
}

func h2load(s setup, r row, d time.Duration, connections, streams int) []string {
	args := []string{"h2load", "-t", "1", "-c", fmt.Sprint(connections), "-m", fmt.Sprint(streams),
		"-D", fmt.Sprintf("%ds", int(d.Seconds()+0.999)), "--npn-list=h2"}
	switch r.path {
	case pathUpload:
		args = append(args, "-d", filepath.Join(s.Dir, "upload"))
	case pathCall:
		args = append(args, "-d", filepath.Join(s.Dir, "call"), "-H", "content-type: application/grpc", "-H", "te: trailers")
	}
	return append(args, fmt.Sprintf("https://127.0.0.1:%d%s", s.TLSPort, r.path))
}

// uploadSize is the size of an upload, in bytes.
const uploadSize = 16 << 10

// jsonBody returns n bytes of records in JSON.
func jsonBody(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, `{"id": %d, "name": "user %d", "active": %t}`+"\n", i, i*7919%1000, i%3 == 0)
	}
	return b.Bytes()[:n]
}

// writeBodies makes the files that are served and sent.
func writeBodies(dir string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "10k"), bytes.Repeat([]byte("weir"), 10<<10/4), 0o644),
		os.WriteFile(filepath.Join(dir, "json"), jsonBody(10<<10), 0o644),
		os.WriteFile(filepath.Join(dir, "1m"), bytes.Repeat([]byte("weir"), 1<<20/4), 0o644),
		os.WriteFile(filepath.Join(dir, "upload"), bytes.Repeat([]byte("weir"), uploadSize/4), 0o644),
		os.WriteFile(filepath.Join(dir, "call"), callMessage, 0o644),
	)
}

var (
	h2loadTotal  = regexp.MustCompile(`requests: (\d+) total, \d+ started, (\d+) done, (\d+) succeeded, 0 failed, 0 errored, 0 timeout`)
	h2loadStatus = regexp.MustCompile(`status codes: (\d+) 2xx, 0 3xx, 0 4xx, 0 5xx`)
)

// checkH2load returns an error for every failure that h2load counted. ours reports
// whether the output is from h2load.
func checkH2load(output string) (ours bool, err error) {
	if !strings.Contains(output, "starting benchmark") {
		return false, nil
	}
	went := h2loadTotal.MatchString(output) && h2loadStatus.MatchString(output)
	for _, agreed := range []string{"Application protocol: h2\n", "Cipher: TLS_AES_128_GCM_SHA256\n", "Server Temp Key: X25519"} {
		went = went && strings.Contains(output, agreed)
	}
	if !went {
		return true, fmt.Errorf("the load did not go through: %s", output)
	}
	return true, nil
}

// probeH2 sends one request of a row over HTTP/2, and checks the answer.
func (b *bench) probeH2(r row) error {
	config := r.shake.client()
	config.NextProtos = []string{"h2"}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	method, body, want := "GET", "", int64(len(b.setup.Body))
	switch r.path {
	case pathMedium:
		want = 10 << 10
	case pathLarge:
		want = 1 << 20
	case pathUpload:
		method, body = "POST", string(bytes.Repeat([]byte("weir"), uploadSize/4))
	case pathCall:
		method, body, want = "POST", string(callMessage), int64(len(callMessage))
	}
	req, err := http.NewRequest(method, fmt.Sprintf("https://127.0.0.1:%d%s", r.port(b.setup), r.path), bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Host = "localhost"
	if r.path == pathCall {
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("TE", "trailers")
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if err != nil || res.StatusCode != 200 || res.ProtoMajor != 2 || n != want || r.path == pathCall && res.Trailer.Get("Grpc-Status") != "0" {
		return fmt.Errorf("the answer is not the backend's: %s by %s, %d bytes, trailers %v, %v", res.Status, res.Proto, n, res.Trailer, err)
	}
	return nil
}
