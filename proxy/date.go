package proxy

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/weirproxy/weir/proxy/message"
)

// stampDate adds a Date to a final response without one: a response that weir generated, or
// that an endpoint sent (RFC 9110, section 6.6.1).
func stampDate(res *message.Response) {
	if res.HasAny(hasDate) || res.Status < http.StatusOK {
		return
	}
	res.Add(message.Date, dateOf(time.Now()))
}

var hasDate = message.SetOf(message.Date)

// dateFormat is an IMF-fixdate (RFC 9110, section 5.6.7), of a time in UTC.
const dateFormat = "Mon, 02 Jan 2006 15:04:05 GMT"

// secondText is a second and its text. It is never changed.
type secondText struct {
	unix int64
	text [len(dateFormat)]byte
}

// lastSecond is the latest second that a caller needed. No goroutine updates it; a caller
// that finds an older second replaces it.
var lastSecond atomic.Pointer[secondText]

// dateOf returns the value of a Date. The caller must not change it. It allocates once a
// second.
func dateOf(now time.Time) []byte {
	s := lastSecond.Load()
	if unix := now.Unix(); s == nil || s.unix != unix {
		s = &secondText{unix: unix}
		now.UTC().AppendFormat(s.text[:0], dateFormat)
		lastSecond.Store(s)
	}
	return s.text[:]
}
