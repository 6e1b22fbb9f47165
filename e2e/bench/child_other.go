//go:build !linux

package main

import "syscall"

// These are there so that the bench compiles; it runs on Linux alone.

func childAttributes() *syscall.SysProcAttr { return nil }

func runApart([]string) (bool, error) { return false, nil }

func pinTo(int) error { return nil }
