package standin

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// kubeletPort is the port of a node at which the API server asks for the logs of Pods.
const kubeletPort = 10250

// longestLog limits the lines of a log.
const longestLog = 20000

// podLog is what a Pod has written. The zero value is empty.
type podLog struct {
	mu    sync.Mutex
	lines []logLine
}

type logLine struct {
	at   time.Time
	text string
}

func (l *podLog) printf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) >= longestLog {
		l.lines = append(l.lines[:0], l.lines[longestLog/2:]...)
	}
	l.lines = append(l.lines, logLine{time.Now(), fmt.Sprintf(format, args...)})
}

// write writes the lines that a request of the API server asks for.
func (l *podLog) write(w http.ResponseWriter, q *http.Request) {
	parameters := q.URL.Query()
	since, _ := time.Parse(time.RFC3339, parameters.Get("sinceTime"))
	if s, err := strconv.Atoi(parameters.Get("sinceSeconds")); err == nil {
		since = time.Now().Add(-time.Duration(s) * time.Second)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	if n, err := strconv.Atoi(parameters.Get("tailLines")); err == nil {
		lines = lines[max(0, len(lines)-n):]
	}
	for _, line := range lines {
		if line.at.Before(since) {
			continue
		}
		if parameters.Get("timestamps") == "true" {
			io.WriteString(w, line.at.Format(time.RFC3339Nano)+" ")
		}
		io.WriteString(w, line.text+"\n")
	}
}

// serveLogs serves the logs of the Pods of a node.
func (c *cluster) serveLogs(node, address string) error {
	pair, err := certificate()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(kubeletPort)))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, q *http.Request) {
		if p := c.running(node, q.PathValue("namespace"), q.PathValue("pod")); p != nil {
			p.log.write(w, q)
			return
		}
		http.NotFound(w, q)
	})
	web(&http.Server{Handler: mux, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}})(l)
	return nil
}

// running returns a Pod of a node; nil: the node does not run it.
func (c *cluster) running(node, namespace, name string) *pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if p.node == node && p.namespace == namespace && p.name == name {
			return p
		}
	}
	return nil
}
