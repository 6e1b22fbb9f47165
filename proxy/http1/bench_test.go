package http1

import (
	"io"
	"strings"
	"testing"

	"github.com/weirproxy/weir/listener/conn"
	"github.com/weirproxy/weir/proxy/message"
)

// Messages as a browser and an application send them.
var (
	browserRequest = lines("GET /shop/items/4711?sort=price&page=2 HTTP/1.1", "Host: shop.example.com", "Connection: keep-alive",
		`sec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"`, "sec-ch-ua-mobile: ?0", `sec-ch-ua-platform: "Linux"`,
		"Upgrade-Insecure-Requests: 1", "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
		"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", "Sec-Fetch-Site: same-origin",
		"Sec-Fetch-Mode: navigate", "Sec-Fetch-User: ?1", "Sec-Fetch-Dest: document", "Referer: https://shop.example.com/shop/",
		"Accept-Encoding: gzip, deflate, br, zstd", "Accept-Language: en-GB,en;q=0.9,de;q=0.8",
		"Cookie: session=0123456789abcdef0123456789abcdef; theme=dark; consent=1", "")
	plainAnswer = lines("HTTP/1.1 200 OK", "Date: Sat, 21 Nov 2026 11:00:00 GMT", "Content-Type: text/html; charset=utf-8",
		"Content-Length: 128", "Connection: keep-alive", "Cache-Control: private, max-age=0", "Vary: Accept-Encoding", "") + strings.Repeat("x", 128)
	largeChunk    = "c000\r\n" + strings.Repeat("x", 0xc000) + "\r\n"
	chunkedAnswer = lines("HTTP/1.1 200 OK", "Content-Type: text/html", "Transfer-Encoding: chunked", "") +
		strings.Repeat("40\r\n"+strings.Repeat("x", 64)+"\r\n", 8) + largeChunk + largeChunk + "0\r\n\r\n"
)

// loop is a connection whose other end sends the same message again and again, one at a time.
type loop struct {
	message string
	at      int
	writes  int
}

func (l *loop) Read(p []byte) (int, error) {
	if l.at == len(l.message) {
		l.at = 0
		return 0, conn.ErrWouldBlock
	}
	n := copy(p, l.message[l.at:])
	l.at += n
	return n, nil
}

func (l *loop) Write(p []byte) (int, error) {
	l.writes++
	return len(p), nil
}

// exchanger passes exchanges from one loop to another, as the proxy does.
type exchanger struct {
	client, endpoint loop
	server           Server
	link             Client
	req              message.Request
	res              message.Response
}

func newExchanger(request, response string) *exchanger {
	x := &exchanger{client: loop{message: request}, endpoint: loop{message: response}}
	x.server.Init(&x.client, Limits{})
	x.link.Init(&x.endpoint, Limits{})
	return x
}

func (x *exchanger) exchange() error {
	if err := x.server.ReadHead(&x.req); err != nil {
		return err
	}
	x.link.WriteHead(&x.req)
	for !x.server.BodyEnded() {
		p, err := x.server.ReadBody(&x.req)
		if err != nil && err != io.EOF {
			return err
		}
		x.link.WriteBody(p)
	}
	x.link.WriteEnd(&x.req)
	x.link.Flush()
	if err := x.link.ReadHead(&x.req, &x.res); err != nil {
		return err
	}
	x.server.WriteHead(&x.req, &x.res, false)
	for !x.link.BodyEnded() {
		p, err := x.link.ReadBody(&x.res)
		if err != nil && err != io.EOF {
			return err
		}
		x.server.WriteBody(p)
	}
	x.server.WriteEnd(&x.res)
	x.link.Release()
	x.server.Flush()
	if !x.link.Reusable() || x.server.MustClose() {
		return io.ErrUnexpectedEOF
	}
	if err := x.server.ReadHead(&x.req); err != conn.ErrWouldBlock { // the wait for the next request
		return err
	}
	x.server.Release()
	if !x.link.Usable(conn.ErrWouldBlock) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

var exchanges = map[string]func() *exchanger{
	"plain":   func() *exchanger { return newExchanger(browserRequest, plainAnswer) },
	"chunked": func() *exchanger { return newExchanger(browserRequest, chunkedAnswer) },
	"upload": func() *exchanger {
		return newExchanger(chunkedPost+largeChunk+largeChunk+"0\r\nT: u\r\n\r\n", plainAnswer)
	},
	"large": func() *exchanger {
		return newExchanger(lines("GET / HTTP/1.0", "Connection: keep-alive", "Host: a", ""),
			lines("HTTP/1.1 200 OK", "Content-Length: 100000", "")+strings.Repeat("x", 100000))
	},
	"refused fields": func() *exchanger {
		return newExchanger(get("Connection: A, B, close-not", "A: 1", "X_Forwarded_For: 1", "TE: trailers", "Keep-Alive: x"), plainAnswer)
	},
}

func BenchmarkExchange(b *testing.B) {
	for name, make := range exchanges {
		b.Run(name, func(b *testing.B) {
			x := make()
			b.ReportAllocs()
			for b.Loop() {
				if err := x.exchange(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
