//go:build !linux

package tunnel

// splicer is empty: this system has no splice(2), so all bytes go through buffers.
type splicer struct{}

func (d *direction) splice(*ConnEnd) next {
	d.noSplice = true
	return nextRead
}
