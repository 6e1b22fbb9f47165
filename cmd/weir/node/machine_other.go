//go:build !linux

package node

// machineMemory returns the memory of the machine in bytes; 0: unknown.
func machineMemory() int64 { return 0 }
