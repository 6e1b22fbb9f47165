package filter

import "github.com/weirproxy/weir/proxy/message"

// robots tells search engines whether they may index the pages of a route (robots of a route).
type robots string

var robotsName = []byte("X-Robots-Tag")

// EditResponse replaces the endpoint's value.
func (r robots) EditResponse(x Exchange, res *message.Response) {
	for i := range res.Fields {
		if message.EqualFold(res.Name(i), "x-robots-tag") {
			res.Fields[i].Dropped = true
		}
	}
	res.AddSpans(res.Store(robotsName), res.StoreString(string(r)))
}
