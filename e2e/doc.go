// Package e2e drives the built binary against real peers: HAProxy and raw
// senders in front, OpenSSL, curl, Node.js and OpenSSH as clients, Go servers and
// sshd behind. It knows weir only by what is documented: the command line, the
// configuration file, signals, ports, metrics and the two logs.
//
// A peer that is not installed skips its tests; where CI=true it fails them.
// WEIR_E2E_BINARY names a binary to drive instead of building one, one built
// with -race for instance.
package e2e
