package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// send sends a request on a connection of its own, and returns the response.
func (s *side) send(r request) []string {
	over := r.over
	if over == "h2" {
		over = "secure"
	}
	c, err := net.DialTimeout("tcp", s.address[over], patience)
	if err != nil {
		return []string{"no connection: " + err.Error()}
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if over == "secure" {
		protocol := "http/1.1"
		if r.over == "h2" {
			protocol = "h2"
		}
		secure := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: r.host, NextProtos: []string{protocol}})
		if err := secure.Handshake(); err != nil {
			return []string{"no handshake: " + ending(err)}
		}
		c = secure
		if r.over == "h2" {
			return s.sendHTTP2(c, r)
		}
	}
	text := r.raw
	if text == "" {
		text = r.text()
	}
	if _, err := io.WriteString(c, r.preamble+text); err != nil {
		return []string{"cannot send: " + ending(err)}
	}
	return s.responses(c, r)
}

// text is the request as HTTP/1.1.
func (r request) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.method, r.path, r.host)
	for _, h := range r.header {
		fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
	}
	switch {
	case r.chunked && r.body != "":
		fmt.Fprintf(&b, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(r.body), r.body)
	case r.body != "":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(r.body), r.body)
	default:
		b.WriteString("\r\n")
	}
	return b.String()
}

// responses reads the interim responses and the final one.
func (s *side) responses(c net.Conn, r request) []string {
	in := bufio.NewReader(c)
	method, _, _ := strings.Cut(r.raw, " ")
	if r.raw == "" {
		method = r.method
	}
	var lines []string
	for {
		var head bytes.Buffer
		resp, err := http.ReadResponse(bufio.NewReaderSize(io.TeeReader(oneByOne{in}, &head), 16), &http.Request{Method: method})
		if err != nil {
			return append(lines, fmt.Sprintf("ends: %s %q", ending(err), s.normal(head.String())))
		}
		lines = append(lines, s.heads(head.String())...)
		if resp.StatusCode >= 200 || resp.StatusCode == 101 {
			return append(lines, fmt.Sprintf("closes %v", resp.Close), s.body(in, resp))
		}
	}
}

// oneByOne keeps readers from reading past the head of a response.
type oneByOne struct{ from *bufio.Reader }

func (o oneByOne) Read(p []byte) (int, error) { return o.from.Read(p[:min(len(p), 1)]) }

func (s *side) body(in *bufio.Reader, resp *http.Response) string {
	if resp.StatusCode == 101 {
		return "upgraded"
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Sprintf("body %.80q, then %s", s.normal(string(text)), ending(err))
	}
	return s.bodyLine(string(text), resp.Header.Get("Content-Encoding"))
}

// bodyLine is short, and without compressed bytes, which libraries may change.
func (s *side) bodyLine(text, encoding string) string {
	if encoding != "" {
		return "body in " + encoding
	}
	return fmt.Sprintf("body of %d: %.300q", len(text), s.normal(text))
}

// heads are the lines of a head. Their order is part of it, the date is not.
func (s *side) heads(text string) []string {
	lines := strings.Split(strings.TrimRight(s.normal(text), "\r\n"), "\r\n")
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(strings.ToLower(line), "date:") })
}

// ending says how a connection ended, without addresses.
func ending(err error) string {
	var timeout net.Error
	var alert tls.AlertError
	switch {
	case errors.As(err, &alert):
		return alert.Error()
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "end"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "nothing in time"
	case strings.Contains(err.Error(), "reset"), strings.Contains(err.Error(), "broken pipe"):
		return "end" // a reset may overtake the end
	}
	return err.Error()
}

// sendHTTP2 sends the request as the first stream of a connection.
func (s *side) sendHTTP2(c net.Conn, r request) []string {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := [][2]string{{":method", r.method}, {":scheme", "https"}, {":authority", r.host}, {":path", r.path}}
	for _, h := range r.header {
		fields = append(fields, [2]string{strings.ToLower(h[0]), h[1]})
	}
	for _, f := range fields {
		encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	f.WriteSettings()
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: r.body == ""})
	if r.body != "" {
		f.WriteData(1, true, []byte(r.body))
	}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	return s.readHTTP2(f)
}

func (s *side) readHTTP2(f *http2.Framer) []string {
	var lines []string
	var body strings.Builder
	encoding := ""
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return append(lines, "ends: "+ending(err))
		}
		ended := false
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range frame.Fields {
				if h.Name == "content-encoding" {
					encoding = h.Value
				}
				if h.Name != "date" {
					lines = append(lines, s.normal(h.Name+": "+h.Value))
				}
			}
			ended = frame.StreamEnded()
		case *http2.DataFrame:
			body.Write(frame.Data())
			ended = frame.StreamEnded()
		case *http2.RSTStreamFrame:
			return append(lines, "reset: "+frame.ErrCode.String())
		case *http2.GoAwayFrame:
			if frame.ErrCode != http2.ErrCodeNo {
				return append(lines, "goaway: "+frame.ErrCode.String())
			}
		}
		if ended {
			return append(lines, s.bodyLine(body.String(), encoding))
		}
	}
}

// tunnel sends some bytes through the raw listener.
func (s *side) tunnel() []string {
	c, err := net.DialTimeout("tcp", s.address["raw"], patience)
	if err != nil {
		return []string{"no connection: " + err.Error()}
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	io.WriteString(c, "hello")
	text, err := io.ReadAll(c)
	if err != nil {
		return []string{"ends: " + ending(err)}
	}
	return []string{fmt.Sprintf("%q", text)}
}
