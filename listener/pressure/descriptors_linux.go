package pressure

import "golang.org/x/sys/unix"

// openDescriptors asks for the size of a folder: since Linux 6.2 that is how
// many descriptors are open, and costs a few microseconds for a million of them.
// Older ones say 0, and counting the entries takes too long.
func openDescriptors() (int64, bool) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/fd", &st)
	return st.Size, err == nil && st.Size > 0
}
