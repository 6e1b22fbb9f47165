package message

import "slices"

// Clone returns a copy of the request's head, without trailers. The copy stays valid after
// the exchange has ended. It takes no more memory than its content needs.
func (r *Request) Clone() *Request {
	c := *r
	c.arena = slices.Clip(slices.Clone(r.arena))
	c.Fields = slices.Clip(slices.Clone(r.Fields))
	c.Trailers = Head{}
	return &c
}
