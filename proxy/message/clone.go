package message

import "slices"

// Clone returns a copy of what the head says, for who needs it longer than the
// exchange lasts. It takes no more memory than that.
func (r *Request) Clone() *Request {
	c := *r
	c.arena = slices.Clip(slices.Clone(r.arena))
	c.Fields = slices.Clip(slices.Clone(r.Fields))
	c.Trailers = Head{}
	return &c
}
