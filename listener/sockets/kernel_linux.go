package sockets

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// listenConfig sets keep-alive once, on the listening socket. On Linux accepted sockets
// inherit its options. With KeepAlive -1 the package net does not set it on each socket.
func listenConfig() net.ListenConfig {
	return net.ListenConfig{KeepAlive: -1, Control: setKeepAlive}
}

func setKeepAlive(network, _ string, raw syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	var err error
	set := func(fd, level, option, value int) {
		if err == nil {
			err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, option, value))
		}
	}
	if controlErr := raw.Control(func(f uintptr) {
		fd := int(f)
		set(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		set(fd, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAliveIdle.Seconds()))
		set(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAliveInterval.Seconds()))
		set(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveCount)
	}); controlErr != nil {
		return controlErr
	}
	return err
}

// prepareInherited sets the options of a socket that another process has opened.
func prepareInherited(ln net.Listener) error {
	raw, err := ln.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	return setKeepAlive(ln.Addr().Network(), "", raw)
}

// bindBeside opens a TCP socket beside own sockets that overlap with it. All of them allow
// it for this moment only: otherwise another process of the same user could take
// connections later, and a second weir would not notice that the port is taken.
func bindBeside(network, address string, own []*Socket) (net.Listener, error) {
	defer func() {
		for _, socket := range own {
			allowReuse(socket, false)
		}
	}()
	for _, socket := range own {
		if err := allowReuse(socket, true); err != nil {
			return nil, err
		}
	}
	lc := listenConfig()
	lc.SetMultipathTCP(false)
	lc.Control = func(network, address string, raw syscall.RawConn) error {
		return errors.Join(setKeepAlive(network, address, raw), setReuse(raw, true))
	}
	ln, err := lc.Listen(context.Background(), network, address)
	if err != nil {
		return nil, bindError(network, address, err)
	}
	if err := allowReuse(ln.(*net.TCPListener), false); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// allowReuse sets whether another socket may listen on the port, if it allows it as well.
func allowReuse(socket syscall.Conn, on bool) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	return setReuse(raw, on)
}

func setReuse(raw syscall.RawConn, on bool) error {
	value := 0
	if on {
		value = 1
	}
	var err error
	failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, value) })
	return errors.Join(failed, os.NewSyscallError("setsockopt", err))
}

// handshakeTime is the wait for the last packets of handshakes that have begun.
const handshakeTime = 100 * time.Millisecond

// dropSYN is a socket filter (classic BPF) that drops segments with SYN and without ACK,
// and passes all others. The filter of a TCP socket gets the packet from the TCP header
// on. Byte 13 of this header holds the flags.
var dropSYN = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
	{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x02, Jt: 0, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
}

// refuseNew prevents new handshakes on a TCP socket. It returns the time for those that
// have begun; 0: the kernel does not let weir prevent new ones.
func refuseNew(socket syscall.Conn) time.Duration {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0
	}
	failed := raw.Control(func(fd uintptr) {
		if err = ignoreSYN(int(fd)); err != nil { // Linux 6.18 requires CAP_NET_ADMIN, which weir drops
			err = answerSYN(int(fd))
		}
	})
	if failed != nil || err != nil {
		return 0
	}
	return handshakeTime
}

// ignoreSYN drops the SYN of new connections. The client sends it again after a second,
// and then reaches the next process or gets an error.
func ignoreSYN(fd int) error {
	program := unix.SockFprog{Len: uint16(len(dropSYN)), Filter: &dropSYN[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
}

// answerSYN makes the kernel refuse new connections at once, as on a closed port. It
// binds the socket to a network interface that does not exist. Handshakes that have begun
// continue, because they keep the interface from their start. Linux 5.7 and later allow
// this without capabilities, once for each socket.
func answerSYN(fd int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, noInterface)
}

// noInterface is an index that no network interface has: the kernel counts indexes from
// 1.
const noInterface = 1<<31 - 1
