package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync/atomic"
)

// backendMain serves what nginx cannot serve as a backend: uploads that are read before
// they are answered (HTTP/1.1), and gRPC calls (HTTP/2 with prior knowledge). It counts
// both like nginx's stub_status.
func backendMain(args []string) int {
	flags := flag.NewFlagSet("backend", flag.ExitOnError)
	uploads := flags.Int("uploads", 0, "port for uploads")
	calls := flags.Int("calls", 0, "port for gRPC")
	body := flags.String("body", "", "what uploads are answered with")
	flags.Parse(args)

	failed := make(chan error, 2)
	serve := func(port int, h2c bool, handle http.HandlerFunc) {
		var answered atomic.Int64
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			answered.Add(1)
			handle(w, r)
		})
		mux.HandleFunc("/requests", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "server accepts handled requests\n 0 0 %d \n", answered.Load())
		})
		var protocols http.Protocols
		protocols.SetHTTP1(true) // the bench reads the count over HTTP/1.1
		protocols.SetUnencryptedHTTP2(h2c)
		server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), Handler: mux, Protocols: &protocols,
			HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 1000}}
		failed <- server.ListenAndServe()
	}
	go serve(*uploads, false, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, *body)
	})
	go serve(*calls, true, unary)
	fmt.Fprintln(os.Stderr, <-failed)
	return 1
}

// callMessage is the message of a gRPC call and of its response: 128 bytes.
var callMessage = append([]byte{0, 0, 0, 0, 128}, make([]byte, 128)...)

// unary answers every call like a gRPC server, whatever its method.
func unary(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Trailer", "Grpc-Status")
	w.Write(callMessage)
	w.Header().Set("Grpc-Status", "0")
}
