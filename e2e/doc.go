// Package e2e tests the built binary with real peers: HAProxy and raw senders in front of it; OpenSSL, curl,
// Node.js and OpenSSH as clients; Go servers and sshd as backends. The tests use only documented interfaces:
// the command line, the configuration file, signals, ports, metrics, and the two logs.
//
// A test is skipped if one of its peers is not installed; if CI=true, it fails. The environment variable
// WEIR_E2E_BINARY names a binary to test, for example one built with -race. Without it, the tests build the
// binary.
package e2e
