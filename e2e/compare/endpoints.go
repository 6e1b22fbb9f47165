package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// endpoints are servers that record what arrives, byte for byte.
type endpoints struct {
	listeners []net.Listener
	mu        sync.Mutex
	records   []string
}

func (e *endpoints) open(address map[string]string) error {
	for _, name := range []string{"app", "next", "pages", "decider", "stream"} {
		ln, err := net.Listen("tcp", address[name])
		if err != nil {
			return err
		}
		e.listeners = append(e.listeners, ln)
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				go e.serve(name, c)
			}
		}()
	}
	return nil
}

func (e *endpoints) close() {
	for _, ln := range e.listeners {
		ln.Close()
	}
}

func (e *endpoints) record(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.records = append(e.records, text)
}

func (e *endpoints) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.records
}

// untilQuiet waits for copies of requests, which clients do not wait for.
func (e *endpoints) untilQuiet() {
	for before := -1; before != len(e.all()); time.Sleep(200 * time.Millisecond) {
		before = len(e.all())
	}
}

func (e *endpoints) serve(name string, c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	proxied, err := proxyHeader(r)
	if err != nil {
		return
	}
	if name == "stream" {
		buf := make([]byte, 5)
		if _, err := io.ReadFull(r, buf); err == nil {
			e.record(fmt.Sprintf("%s %s%q", name, proxied, buf))
			c.Write(buf)
		}
		return
	}
	for {
		head, body, err := readRequest(r)
		if err != nil {
			return
		}
		e.record(fmt.Sprintf("%s %s%q %q", name, proxied, head, body))
		if answer(c, name, head) {
			return
		}
	}
}

// proxyHeader reads a PROXY header, if there is one.
func proxyHeader(r *bufio.Reader) (string, error) {
	begin, err := r.Peek(5)
	switch {
	case err != nil:
		return "", err
	case string(begin) == "PROXY":
		line, err := r.ReadString('\n')
		fields := strings.Fields(line)
		if len(fields) > 5 {
			fields[4], fields[5] = "#", "#"
		}
		return strings.Join(fields, " ") + " ", err
	case string(begin) == "\r\n\r\n\x00":
		head := make([]byte, 16)
		if _, err := io.ReadFull(r, head); err != nil {
			return "", err
		}
		rest := make([]byte, binary.BigEndian.Uint16(head[14:]))
		_, err := io.ReadFull(r, rest)
		end := map[byte]int{0x11: 8, 0x21: 32}[head[13]]
		return fmt.Sprintf("PROXY2 %x %x ", head[12:14], rest[:min(end, len(rest))]), err
	}
	return "", nil
}

// readRequest reads a request with its framing.
func readRequest(r *bufio.Reader) (head, body string, err error) {
	if head, err = readHead(r); err != nil {
		return
	}
	lower := strings.ToLower(head)
	if _, after, ok := strings.Cut(lower, "\ncontent-length:"); ok {
		line, _, _ := strings.Cut(after, "\r")
		n, _ := strconv.Atoi(strings.TrimSpace(line))
		buf := make([]byte, n)
		_, err = io.ReadFull(r, buf)
		return head, string(buf), err
	}
	if !strings.Contains(lower, "\ntransfer-encoding:") {
		return head, "", nil
	}
	var b bytes.Buffer
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return head, "", err
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(line), 16, 32)
		if n == 0 {
			trailers := ""
			if next, _ := r.Peek(2); string(next) != "\r\n" {
				trailers, err = readHead(r)
			} else {
				_, err = r.Discard(2)
			}
			return head, "chunks " + b.String() + trailers, err
		}
		io.CopyN(&b, r, n)
		r.Discard(2)
	}
}

func readHead(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		b.WriteString(line)
		if err != nil || line == "\r\n" {
			return b.String(), err
		}
	}
}

// answer writes the response that the query asks for, and reports whether the connection ends.
func answer(c net.Conn, name, head string) bool {
	line, _, _ := strings.Cut(head, "\r\n")
	has := func(what string) bool { return strings.Contains(line, what) }
	status, body, header := "200 OK", "hello from "+name+"\n", "Server: app\r\nContent-Type: text/plain\r\nETag: \"v1\"\r\nAccess-Control-Allow-Origin: https://app.test\r\n"
	switch {
	case name == "decider" && !strings.Contains(head, "YWRhOnNlY3JldA"):
		status = "403 Forbidden"
	case name == "decider":
		header += "X-User: ada\r\n"
	case name == "pages":
		header = "Content-Type: text/html\r\n"
	case has("do=503"):
		status = "503 Service Unavailable"
	case has("do=404"):
		status = "404 Not Found"
	case has("do=large"):
		body = strings.Repeat("0123456789abcde\n", 256)
	case has("do=close"):
		return true
	case has("do=cookie"):
		header += "Set-Cookie: a=b; Path=/\r\n"
	case has("do=interim"):
		io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
	}
	if has("do=chunked") && !strings.HasPrefix(line, "HEAD") {
		fmt.Fprintf(c, "HTTP/1.1 %s\r\n%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-Trailer: 1\r\n\r\n", status, header, len(body), body)
		return false
	}
	header = fmt.Sprintf("HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n", status, header, len(body))
	if strings.HasPrefix(line, "HEAD") {
		body = ""
	}
	io.WriteString(c, header+body)
	return false
}
