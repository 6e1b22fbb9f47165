package conn

import (
	"bytes"
	"crypto/tls"
	"reflect"
	"unsafe"
)

// A tls.Conn keeps the buffers of its largest record and its largest handshake message
// until it is closed, and has no method to release them: about 30 KiB for a connection
// that received records of full size. This file releases empty buffers. It is the only
// file that depends on the fields of a tls.Conn. If the fields are not as expected, it
// does nothing, and its test fails.

// tlsBuffers are the offsets of the fields of a tls.Conn that only its reading side uses.
var tlsBuffers = findTLSBuffers(reflect.TypeFor[tls.Conn]())

type tlsOffsets struct {
	raw, hand, input uintptr
	known            bool
}

func findTLSBuffers(of reflect.Type) (o tlsOffsets) {
	raw, ok1 := of.FieldByName("rawInput")
	hand, ok2 := of.FieldByName("hand")
	input, ok3 := of.FieldByName("input")
	buffer, reader := reflect.TypeFor[bytes.Buffer](), reflect.TypeFor[bytes.Reader]()
	o.known = ok1 && ok2 && ok3 && raw.Type == buffer && hand.Type == buffer && input.Type == reader
	o.raw, o.hand, o.input = raw.Offset, hand.Offset, input.Offset
	return o
}

// ReleaseTLS releases the empty buffers that c keeps for reading. Only the reader of c
// may call it, and not within Read. The session continues unchanged; the next record
// allocates new buffers.
func ReleaseTLS(c *tls.Conn) {
	if !tlsBuffers.known {
		return
	}
	input := (*bytes.Reader)(unsafe.Add(unsafe.Pointer(c), tlsBuffers.input))
	raw := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c), tlsBuffers.raw))
	hand := (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c), tlsBuffers.hand))
	if input.Len() == 0 && raw.Len() == 0 { // input is a part of raw's memory
		*input = bytes.Reader{}
		*raw = bytes.Buffer{}
	}
	if hand.Len() == 0 {
		*hand = bytes.Buffer{}
	}
}

// HandshakeBytes returns how many bytes of incomplete handshake messages c holds. Only c's reader may
// call it.
func HandshakeBytes(c *tls.Conn) int {
	if !tlsBuffers.known {
		return 0
	}
	return (*bytes.Buffer)(unsafe.Add(unsafe.Pointer(c), tlsBuffers.hand)).Len()
}

// bufferOffsets are the offsets of two fields of a bytes.Buffer: its memory, and how much
// of it was read.
var bufferBytes, bufferRead, bufferKnown = func() (memory, read uintptr, known bool) {
	of := reflect.TypeFor[bytes.Buffer]()
	buf, ok1 := of.FieldByName("buf")
	off, ok2 := of.FieldByName("off")
	return buf.Offset, off.Offset, ok1 && ok2 && buf.Type == reflect.TypeFor[[]byte]() && off.Type == reflect.TypeFor[int]()
}()

// ClientHello returns the ClientHello that c has read, as a handshake message with its header; nil
// if it is not there any more. Only c's reader may call it, and only after c's handshake has failed
// because of the ClientHello. The caller must not keep it.
func ClientHello(c *tls.Conn) []byte {
	if !tlsBuffers.known || !bufferKnown {
		return nil
	}
	hand := unsafe.Add(unsafe.Pointer(c), tlsBuffers.hand)
	buf, off := *(*[]byte)(unsafe.Add(hand, bufferBytes)), *(*int)(unsafe.Add(hand, bufferRead))
	const typeHello, header = 1, 4
	if off < header || off > len(buf) || buf[0] != typeHello || header+(int(buf[1])<<16|int(buf[2])<<8|int(buf[3])) != off {
		return nil
	}
	return buf[:off]
}

// PlainAlert returns the alert if the last record that c read is an unencrypted alert.
// Clients that reject the certificate in TLS 1.3 may send one; crypto/tls then expects an
// encrypted record and reports that it was changed. Only c's reader may call it, and only
// after c's handshake has failed.
func PlainAlert(c *tls.Conn) (alert byte, ok bool) {
	if !tlsBuffers.known || !bufferKnown {
		return 0, false
	}
	raw := unsafe.Add(unsafe.Pointer(c), tlsBuffers.raw)
	buf, off := *(*[]byte)(unsafe.Add(raw, bufferBytes)), *(*int)(unsafe.Add(raw, bufferRead))
	const size = 7 // type 21, a version, a length of 2, level and description
	if off < size || off > len(buf) {
		return 0, false
	}
	b := buf[off-size : off]
	return b[6], b[0] == 21 && b[1] == 3 && b[3] == 0 && b[4] == 2 && (b[5] == 1 || b[5] == 2)
}
