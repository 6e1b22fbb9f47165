package proxy

import (
	"net/netip"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// trust is a set of kinds of information about clients that weir accepts from the other end
// of a connection; zero: none.
type trust uint8

const (
	trustSender trust = 1 << iota // the address is in trust_forwarded
	trustFor
	trustProto
	trustHost
	trustPort
	trustClientCert
	trustOther
	trustNobody // no set contains it
)

var trustOf = map[config.Trust]trust{
	config.TrustFor: trustFor, config.TrustProto: trustProto, config.TrustHost: trustHost, config.TrustPort: trustPort,
	config.TrustClientCert: trustClientCert, config.TrustOther: trustOther,
}

// needs lists the kind of trust in a sender that weir requires to keep the header with an id;
// zero: none. No sender may send Forwarded, because most proxies that write X-Forwarded-For
// forward the Forwarded header of their own clients unchanged. The same applies to the headers in
// which weir repeats the scheme of X-Forwarded-Proto.
var needs = [256]trust{
	message.XForwardedFor: trustFor, message.ClientAddress: trustFor,
	message.XForwardedProto: trustProto, message.XForwardedHost: trustHost, message.XForwardedPort: trustPort,
	message.XForwardedOther: trustOther, message.XRequestID: trustSender,
	message.Forwarded: trustNobody, message.XRealIP: trustNobody, message.XForwardedScheme: trustNobody, message.XScheme: trustNobody,
	message.Proxy: trustNobody, message.OtherURL: trustNobody, message.Misspelt: trustNobody,
	message.ClientCert: trustClientCert, message.ClientCertChain: trustClientCert, message.XClientCertSubject: trustClientCert,
	message.XClientCertSAN: trustClientCert, message.XClientCertSHA256: trustClientCert, message.ClientCertOther: trustClientCert,
}

// claims are the ids that need trust.
var claims = func() (s message.IDs) {
	for id, n := range needs {
		if n != 0 {
			s |= message.SetOf(message.ID(id))
		}
	}
	return s
}()

// headerLists are the changes that a listener makes to needs.
type headerLists struct {
	drop, keep *message.Names
}

func newHeaderLists(l *config.Listener) *headerLists {
	if len(l.DropHeaders)+len(l.KeepHeaders) == 0 {
		return nil
	}
	return &headerLists{drop: message.NewNames(l.DropHeaders), keep: message.NewNames(l.KeepHeaders)}
}

// believes returns what a listener accepts from a sender at that address.
func (e *edge) believes(sender netip.Addr) trust {
	if !contains(e.trusted, sender) {
		return 0
	}
	return e.trust
}

// trustIn returns what a listener accepts from senders in its trust_forwarded.
func trustIn(l *config.Listener) trust {
	all := trustSender
	for _, t := range l.Trust {
		all |= trustOf[t]
	}
	return all
}

// maxHops limits the elements of X-Forwarded-For that weir reads: a trusted sender could
// send thousands.
const maxHops = 32

// findClient finds the client that sent the request. If the other end of the connection is
// trusted, that is the rightmost address in X-Forwarded-For that is not trusted; if all are
// trusted, the leftmost. The search ends at an element that is not an address, because then
// weir does not know the sender of the elements before it. It also ends after maxHops elements.
// The client then is the last trusted address.
func (x *exchange) findClient() netip.AddrPort {
	client := x.origin.Client
	if x.trusts&trustFor == 0 {
		return client
	}
	hops := 0
	for i := len(x.req.Fields) - 1; i >= 0; i-- {
		if f := &x.req.Fields[i]; f.ID != message.XForwardedFor || f.Dropped {
			continue
		}
		for list, element := x.req.Value(i), []byte(nil); len(list) > 0; {
			if hops++; hops > maxHops {
				return client
			}
			if list, element = message.CutLast(list); len(element) == 0 {
				continue // RFC 9110, section 5.6.1.2
			}
			a, ok := message.ParseAddress(element)
			if !ok {
				return client
			}
			if client = a; !contains(x.edge.trusted, a.Addr()) {
				return client
			}
		}
	}
	return client
}

// dropClaims drops three kinds of headers:
//   - headers about the client that the listener does not accept from this sender
//   - headers about a certificate, if weir itself has verified a certificate, because the two
//     might belong to different clients
//   - headers that no endpoint may get
func (x *exchange) dropClaims() {
	req, believed := &x.req, x.trusts
	if x.certified {
		believed &^= trustClientCert
	}
	if req.HasAny(claims) {
		for i := range req.Fields {
			f := &req.Fields[i]
			if n := needs[f.ID]; n != 0 && n&believed == 0 && !x.keeps(i) {
				f.Dropped = true
			}
		}
	}
	x.dropListed(&req.Head)
}

// keeps returns true if the listener keeps header i of the request, which is dropped by
// default.
func (x *exchange) keeps(i int) bool {
	lists := x.edge.headers
	return lists != nil && lists.keep.Has(x.req.Name(i))
}

// dropListed drops the headers in the listener's drop_headers, in any spelling.
func (x *exchange) dropListed(h *message.Head) {
	if x.edge.headers == nil || x.edge.headers.drop == nil {
		return
	}
	for i := range h.Fields {
		if x.edge.headers.drop.HasAlike(h.Name(i)) {
			h.Fields[i].Dropped = true
		}
	}
}
