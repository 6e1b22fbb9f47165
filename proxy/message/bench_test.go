package message

import "testing"

// usual are the names of the headers that a browser and a client of an API send.
var usual = [][]byte{[]byte("Host"), []byte("User-Agent"), []byte("Accept"), []byte("Accept-Language"), []byte("Accept-Encoding"), []byte("Referer"),
	[]byte("Connection"), []byte("Cookie"), []byte("Upgrade-Insecure-Requests"), []byte("Sec-Fetch-Dest"), []byte("Sec-Fetch-Mode"), []byte("Sec-Fetch-Site"),
	[]byte("Priority"), []byte("Cache-Control"), []byte("Content-Type"), []byte("Content-Length"), []byte("Authorization"), []byte("X-Api-Key"),
	[]byte("X-Requested-With"), []byte("Traceparent")}

// BenchmarkLookup finds the ids of 20 names.
func BenchmarkLookup(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		for _, name := range usual {
			Lookup(name)
		}
	}
}
