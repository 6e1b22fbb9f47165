package hello

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// names of extensions that crypto/tls reads, as operators know them.
var extensionNames = map[uint16]string{
	extServerName: "SNI", 5: "status_request", 10: "supported_groups", 11: "ec_point_formats", 13: "signature_algorithms", 16: "ALPN", 18: "signed_certificate_timestamp",
	23: "extended_master_secret", 35: "session_ticket", 41: "pre_shared_key", 42: "early_data", 43: "supported_versions", 44: "cookie", 45: "psk_key_exchange_modes",
	50: "signature_algorithms_cert", 51: "key_share", 57: "quic_transport_parameters", 0xfe0d: "encrypted_client_hello", 0xff01: "renegotiation_info",
}

// maxFaulty limits the size of a message in which Fault looks for one malformed extension, in bytes. Real
// ones are smaller.
const maxFaulty = 8 << 10

// maxLeftOut limits the extensions that Fault leaves out one by one, because strangers cause the work. Real
// clients send fewer than 30.
const maxLeftOut = 64

// Fault says why crypto/tls refuses a ClientHello, a handshake message with its header. It is empty
// if crypto/tls accepts the message, or if the cause is not known.
func Fault(message []byte) string {
	if len(message) < messageHeader || len(message) > maxFaulty || accepted(message) {
		return ""
	}
	var all [][]byte // each with number and length
	seen := map[uint16]bool{}
	fault := ""
	err := extensions(message[messageHeader:], func(number uint16, data []byte) error {
		whole := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, number), uint16(len(data)))
		all = append(all, append(whole, data...))
		switch {
		case seen[number]:
			fault = fmt.Sprintf("the extension %s twice", extensionName(number))
		case number == extServerName && bytes.HasSuffix(data, []byte(".")):
			fault = "an SNI that ends with a dot (RFC 6066, section 3)"
		}
		seen[number] = true
		return nil
	})
	if err != nil {
		return "the client sent a " + err.Error()
	}
	for i := 0; i < len(all) && len(all) <= maxLeftOut && fault == ""; i++ {
		if accepted(without(message, all, i)) {
			fault = "a malformed extension " + extensionName(binary.BigEndian.Uint16(all[i]))
		}
	}
	if fault == "" {
		return ""
	}
	return "the client sent a ClientHello with " + fault + ", which Go's TLS refuses; a route that passes its TLS through (tls: passthrough) forwards it"
}

func extensionName(number uint16) string {
	if name := extensionNames[number]; name != "" {
		return fmt.Sprintf("%s (%d)", name, number)
	}
	return fmt.Sprint(number)
}

// without returns a ClientHello without one of its extensions.
func without(message []byte, all [][]byte, one int) []byte {
	size := 2
	for _, x := range all {
		size += len(x)
	}
	out := bytes.Clone(message[:len(message)-size])
	var rest []byte
	for i, x := range all {
		if i != one {
			rest = append(rest, x...)
		}
	}
	out = append(binary.BigEndian.AppendUint16(out, uint16(len(rest))), rest...)
	binary.BigEndian.PutUint32(out, typeHello<<24|uint32(len(out)-messageHeader))
	return out
}

// accepted reports whether crypto/tls can read a ClientHello.
func accepted(message []byte) (yes bool) {
	record := binary.BigEndian.AppendUint16([]byte{recordHandshake, 3, 1}, uint16(len(message)))
	tls.Server(&replay{r: bytes.NewReader(append(record, message...))}, &tls.Config{
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			yes = true
			return nil, io.EOF
		},
	}).Handshake()
	return yes
}

// replay is a connection from which crypto/tls reads bytes again. What it writes is discarded.
type replay struct{ r io.Reader }

func (c *replay) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c *replay) Write(p []byte) (int, error)      { return len(p), nil }
func (c *replay) Close() error                     { return nil }
func (c *replay) LocalAddr() net.Addr              { return nil }
func (c *replay) RemoteAddr() net.Addr             { return nil }
func (c *replay) SetDeadline(time.Time) error      { return nil }
func (c *replay) SetReadDeadline(time.Time) error  { return nil }
func (c *replay) SetWriteDeadline(time.Time) error { return nil }
