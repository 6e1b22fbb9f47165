package node

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// maxPortConnections limits the connections of the admin port and of the metrics port.
const maxPortConnections = 256

// crowd limits the connections of a port. Over the limit it closes the connection that has been
// idle longest, or the oldest one if none is idle. So clients with idle connections cannot
// block Prometheus.
type crowd struct {
	max   int
	ended func() // called when a connection has ended, if set

	mu    sync.Mutex
	all   list.List // of net.Conn, the oldest first
	idle  list.List // the connections without a request in progress
	place map[net.Conn]*places
}

type places struct{ all, idle *list.Element }

// changed is the ConnState of the http.Server.
func (c *crowd) changed(nc net.Conn, state http.ConnState) {
	c.mu.Lock()
	var surplus net.Conn
	switch state {
	case http.StateNew:
		if c.place == nil {
			c.place = map[net.Conn]*places{}
		}
		if c.all.Len() >= c.max {
			surplus = c.choose()
		}
		c.place[nc] = &places{all: c.all.PushBack(nc), idle: c.idle.PushBack(nc)}
	case http.StateActive:
		if p := c.place[nc]; p != nil && p.idle != nil {
			c.idle.Remove(p.idle)
			p.idle = nil
		}
	case http.StateIdle:
		if p := c.place[nc]; p != nil && p.idle == nil {
			p.idle = c.idle.PushBack(nc)
		}
	default:
		c.forget(nc)
	}
	c.mu.Unlock()
	if surplus != nil {
		surplus.Close()
	}
	if state == http.StateClosed && c.ended != nil {
		c.ended()
	}
}

// endOne closes a connection to make room for another one. It returns false if there is none.
func (c *crowd) endOne() bool {
	c.mu.Lock()
	if c.all.Len() == 0 {
		c.mu.Unlock()
		return false
	}
	surplus := c.choose()
	c.mu.Unlock()
	surplus.Close()
	return true
}

// choose removes and returns the connection to close. c.mu is held.
func (c *crowd) choose() net.Conn {
	front := c.idle.Front()
	if front == nil {
		front = c.all.Front()
	}
	nc := front.Value.(net.Conn)
	c.forget(nc)
	return nc
}

func (c *crowd) forget(nc net.Conn) {
	p := c.place[nc]
	if p == nil {
		return
	}
	c.all.Remove(p.all)
	if p.idle != nil {
		c.idle.Remove(p.idle)
	}
	delete(c.place, nc)
}
