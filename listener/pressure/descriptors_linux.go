package pressure

import "golang.org/x/sys/unix"

// openDescriptors reads the size of the folder /proc/self/fd. Since Linux 6.2 this is the
// number of open descriptors. Reading it costs a few microseconds even for a million of
// them. Older versions return 0, and counting the entries takes too long.
func openDescriptors() (int64, bool) {
	var st unix.Stat_t
	err := unix.Stat("/proc/self/fd", &st)
	return st.Size, err == nil && st.Size > 0
}
