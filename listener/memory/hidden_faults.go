//go:build faults

package memory

// counted makes the accounts know of no memory. Only tests build weir like this: what no account knows must
// not end the process.
func counted(int) int { return 0 }
