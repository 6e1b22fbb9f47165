package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/pause"
	"github.com/weirproxy/weir/proxy/route"
	"github.com/weirproxy/weir/tls/hello"
	"github.com/weirproxy/weir/tls/policy"
)

// errECHPassthrough ends a handshake: after weir has decrypted a ClientHello, it cannot forward it encrypted.
var errECHPassthrough = errors.New("the encrypted ClientHello (ECH) is for a host with tls: passthrough, whose backend cannot read it; publish no ECH configuration for that host in DNS")

// CheckECH refuses a listener that passes through the public name of an ECH key but terminates
// other hosts. A client that requests one of these hosts in an encrypted ClientHello would be
// passed through with the public name, to a backend that cannot decrypt the ClientHello. cfg is a
// valid configuration.
func CheckECH(cfg *config.Config, keys []tls.EncryptedClientHelloKey) error {
	names := policy.PublicNames(keys)
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if l.Protocol != config.ProtocolTLS {
			continue
		}
		modes, terminates := tlsModes(cfg, l.Name)
		for _, name := range names {
			if terminates && modeOf(modes, hello.Name(name)) == config.TLSPassthrough {
				return fmt.Errorf("listener %s passes TLS for %s through, and that is the public name of an ECH key (ech.keys); "+
					"give that host a route without tls: passthrough, or weir cannot decrypt what clients encrypt with the key", l.Name, name)
			}
		}
	}
	return nil
}

// tlsModes returns the TLS mode of a listener for each host ("" is every other host), and
// whether the listener terminates TLS for any host.
func tlsModes(cfg *config.Config, listener string) (modes map[string]config.TLSMode, terminates bool) {
	modes = make(map[string]config.TLSMode)
	for i := range cfg.Routes {
		pause.IfDue()
		r := cfg.Routes[i]
		if !slices.Contains(r.Listeners, listener) || r.FirstBytes != "" {
			continue
		}
		terminates = terminates || r.TLS != config.TLSPassthrough
		for _, h := range r.Hosts {
			modes[h] = r.TLS
		}
		if len(r.Hosts) == 0 {
			modes[""] = r.TLS
		}
	}
	return modes, terminates
}

// modeOf finds the mode of a name in the same way as edge.lookup.
func modeOf(modes map[string]config.TLSMode, name string) config.TLSMode {
	if m, found := route.NewHosts(modes).Find([]byte(name)); found {
		return m
	}
	return modes[""]
}
