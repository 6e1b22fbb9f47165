package core

import "encoding/binary"

// Code is the reason why a stream or a connection ended (RFC 9113, section 7).
type Code uint32

// The codes of RFC 9113.
const (
	NoError Code = iota
	ProtocolError
	InternalError
	FlowControlError
	SettingsTimeout
	StreamClosed
	FrameSizeError
	RefusedStream
	Cancel
	CompressionError
	ConnectError
	EnhanceYourCalm
	InadequateSecurity
	HTTP11Required
)

var codeNames = [...]string{"NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
	"STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR",
	"ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED"}

// String returns the code's name in RFC 9113.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "UNKNOWN"
}

// Preface is the beginning of a client's connection (RFC 9113, section 3.4).
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// The types of frames.
const (
	frameData uint8 = iota
	frameHeaders
	framePriority
	frameReset
	frameSettings
	framePushPromise
	framePing
	frameGoAway
	frameWindowUpdate
	frameContinuation
)

const (
	flagEndStream  = 0x1
	flagAck        = 0x1
	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

// The settings that weir evaluates.
const (
	settingTableSize       = 1
	settingPush            = 2
	settingStreams         = 3
	settingWindow          = 4
	settingFrameSize       = 5
	settingHeadSize        = 6
	settingConnectProtocol = 8 // RFC 8441
)

const (
	frameHeaderSize = 9
	leastFrameSize  = 16 << 10 // also the largest frame that weir accepts, and that it sends
	mostFrameSize   = 1<<24 - 1
	initialWindow   = 1<<16 - 1
	mostWindow      = 1<<31 - 1
	mostStreamID    = 1<<31 - 1
)

// frame is a frame's header.
type frame struct {
	length int
	kind   uint8
	flags  uint8
	id     uint32
}

func (f frame) has(flag uint8) bool { return f.flags&flag != 0 }

func parseFrame(b []byte) frame {
	return frame{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]),
		kind:   b[3],
		flags:  b[4],
		id:     binary.BigEndian.Uint32(b[5:]) & mostStreamID,
	}
}

func appendFrame(b []byte, length int, kind, flags uint8, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), kind, flags,
		byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// setFrameLength sets the length in the frame header at b[at:].
func setFrameLength(b []byte, at, length int) {
	b[at], b[at+1], b[at+2] = byte(length>>16), byte(length>>8), byte(length)
}

func appendSetting(b []byte, id uint16, value uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, id), value)
}

// unpad removes the padding from a payload. RFC 9113, section 6.1: padding that leaves no
// room for its own length is an error.
func unpad(f frame, p []byte) ([]byte, bool) {
	if !f.has(flagPadded) {
		return p, true
	}
	if len(p) == 0 || int(p[0]) >= len(p) {
		return nil, false
	}
	return p[1 : len(p)-int(p[0])], true
}
