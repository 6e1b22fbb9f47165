// Package http2test plays the peers of HTTP/2 connections in the tests of http2 and of its
// core.
package http2test

import (
	"bytes"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Peer writes frames of a peer that need not obey any rule. The frames are in its Buffer.
type Peer struct {
	bytes.Buffer
	Framer *http2.Framer
	block  bytes.Buffer
	enc    *hpack.Encoder
}

// NewPeer makes a peer that has sent nothing.
func NewPeer() *Peer {
	p := &Peer{}
	p.Framer = http2.NewFramer(p, nil)
	p.Framer.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	return p
}

// Greeted makes a client that has sent the beginning of its connection.
func Greeted(settings ...http2.Setting) *Peer { return NewPeer().Greet(settings...) }

// Greet writes the beginning of a client's connection.
func (p *Peer) Greet(settings ...http2.Setting) *Peer {
	p.WriteString(http2.ClientPreface)
	p.Framer.WriteSettings(settings...)
	return p
}

// Fields encodes "name: value" lines. A leading colon is part of the name. The result is
// valid until the next call.
func (p *Peer) Fields(lines ...string) []byte {
	p.block.Reset()
	for _, line := range lines {
		i := strings.Index(line[1:], ":") + 1
		p.enc.WriteField(hpack.HeaderField{Name: line[:i], Value: strings.TrimPrefix(line[i+1:], " ")})
	}
	return p.block.Bytes()
}

// Head writes HEADERS with the given lines.
func (p *Peer) Head(id uint32, end bool, lines ...string) *Peer {
	p.Framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.Fields(lines...), EndStream: end, EndHeaders: true})
	return p
}

// Data writes DATA.
func (p *Peer) Data(id uint32, end bool, body string) *Peer {
	p.Framer.WriteData(id, end, []byte(body))
	return p
}

// Raw writes a frame of any type.
func (p *Peer) Raw(kind, flags uint8, id uint32, payload string) *Peer {
	p.Framer.WriteRawFrame(http2.FrameType(kind), http2.Flags(flags), id, []byte(payload))
	return p
}

// GetLines are the fields of a plain GET, followed by others.
func GetLines(more ...string) []string { return lines("GET", more) }

func lines(method string, more []string) []string {
	return append([]string{":method: " + method, ":scheme: https", ":path: /", ":authority: a"}, more...)
}

// Get writes a GET without a body.
func (p *Peer) Get(id uint32, more ...string) *Peer { return p.Head(id, true, GetLines(more...)...) }

// Post writes the head of a POST, whose body follows.
func (p *Peer) Post(id uint32, more ...string) *Peer {
	return p.Head(id, false, lines("POST", more)...)
}
