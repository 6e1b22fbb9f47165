//go:build !linux

package main

import "syscall"

// These functions exist so that the bench compiles. It only runs on Linux.

func childAttributes() *syscall.SysProcAttr { return nil }

func runApart([]string) (bool, error) { return false, nil }

func pinTo(cores) error { return nil }

func first(args ...string) []string { return args }

func last(args ...string) []string { return args }
