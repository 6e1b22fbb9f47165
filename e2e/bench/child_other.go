//go:build !linux

package main

import "syscall"

// childAttributes is there so that the bench compiles; it runs on Linux alone.
func childAttributes() *syscall.SysProcAttr { return nil }
