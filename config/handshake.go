package config

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// handshakeTime limits a handshake in memory.
const handshakeTime = 10 * time.Second

// TryHandshakes does a handshake in memory with a client that supports everything: up to TLS 1.2,
// and with TLS 1.3, as far as c allows them. It returns an error if a handshake fails.
func TryHandshakes(c *tls.Config) error {
	if c.MinVersion < tls.VersionTLS13 {
		if err := tryHandshake(c, c.MinVersion, min(c.MaxVersion, tls.VersionTLS12)); err != nil {
			return err
		}
	}
	if c.MaxVersion == tls.VersionTLS13 {
		return tryHandshake(c, tls.VersionTLS13, tls.VersionTLS13)
	}
	return nil
}

func tryHandshake(c *tls.Config, oldest, newest uint16) error {
	client := &tls.Config{InsecureSkipVerify: true, ServerName: "handshake.invalid", MinVersion: oldest, MaxVersion: newest}
	for _, s := range suites {
		client.CipherSuites = append(client.CipherSuites, s.ID)
	}
	c = c.Clone()
	c.SessionTicketsDisabled = true // the client would not read it
	a, b := net.Pipe()
	a.SetDeadline(time.Now().Add(handshakeTime))
	b.SetDeadline(time.Now().Add(handshakeTime)) // the other end may have stopped reading
	done := make(chan error, 1)
	go func() {
		done <- tls.Client(b, client).Handshake()
		b.Close()
	}()
	server := &queued{a, make(chan []byte, 64)}
	go server.send()
	err := tls.Server(server, c).Handshake()
	theirs := <-done
	close(server.writes)
	a.Close()
	if err == nil || errors.Is(err, io.EOF) {
		err = theirs
	}
	if err != nil {
		return fmt.Errorf("no client can connect with %s: a handshake in memory failed: %w", tls.VersionName(newest), err)
	}
	return nil
}

// queued is an end of a pipe whose writes do not wait for the reader: both ends of a handshake that
// fails may write at the same time.
type queued struct {
	net.Conn
	writes chan []byte
}

func (q *queued) Write(b []byte) (int, error) {
	q.writes <- bytes.Clone(b)
	return len(b), nil
}

// send writes the queued bytes to the pipe. Writes to a closed pipe return at once.
func (q *queued) send() {
	for b := range q.writes {
		q.Conn.Write(b)
	}
}

// maxRSAOfClients is the largest RSA key that crypto/tls accepts as a client, in bits.
const maxRSAOfClients = 8192

// tryPair does handshakes with a certificate. Certificates with keys of the same kind and size, and chains of
// about the same length, are tried once.
func (v *draft) tryPair(pair *tls.Certificate) error {
	for _, der := range pair.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			continue
		}
		if key, is := c.PublicKey.(*rsa.PublicKey); is && key.N.BitLen() > maxRSAOfClients {
			return nil // crypto/tls refuses it only as a client
		}
	}
	kind := fmt.Sprintf("%T", pair.PrivateKey)
	switch key := pair.PrivateKey.(type) {
	case *rsa.PrivateKey:
		kind = fmt.Sprint("RSA ", key.N.BitLen())
	case *ecdsa.PrivateKey:
		kind = "ECDSA " + key.Params().Name
	}
	size := 0
	for _, der := range pair.Certificate {
		size += len(der)
	}
	kind = fmt.Sprintf("%s, %d KiB", kind, size>>10)
	if err, tried := v.tried[kind]; tried {
		return err
	}
	err := TryHandshakes(&tls.Config{Certificates: []tls.Certificate{*pair}, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS13})
	if v.tried == nil {
		v.tried = map[string]error{}
	}
	v.tried[kind] = err
	return err
}
