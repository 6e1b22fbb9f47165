package filter

import (
	"net/netip"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy/message"
)

// Trust is a set of kinds of information about clients that weir accepts from the other end
// of a connection; zero: none.
type Trust uint8

// The kinds of information.
const (
	TrustSender Trust = 1 << iota // the address is in trust_forwarded
	TrustFor
	TrustProto
	TrustHost
	TrustPort
	TrustClientCert
	TrustOther
	trustNobody // no set contains it
)

var trustOf = map[config.Trust]Trust{
	config.TrustFor: TrustFor, config.TrustProto: TrustProto, config.TrustHost: TrustHost, config.TrustPort: TrustPort,
	config.TrustClientCert: TrustClientCert, config.TrustOther: TrustOther,
}

// needs lists the kind of trust in a sender that weir requires to keep the header with an id;
// zero: none. No sender may send Forwarded, because most proxies that write X-Forwarded-For
// forward the Forwarded header of their own clients unchanged. The same applies to the headers in
// which weir repeats the scheme of X-Forwarded-Proto.
var needs = [256]Trust{
	message.XForwardedFor: TrustFor, message.ClientAddress: TrustFor,
	message.XForwardedProto: TrustProto, message.XForwardedHost: TrustHost, message.XForwardedPort: TrustPort,
	message.XForwardedOther: TrustOther, message.XRequestID: TrustSender,
	message.Forwarded: trustNobody, message.XRealIP: trustNobody, message.XForwardedScheme: trustNobody, message.XScheme: trustNobody,
	message.Proxy: trustNobody, message.OtherURL: trustNobody, message.Misspelt: trustNobody,
	message.ClientCert: TrustClientCert, message.ClientCertChain: TrustClientCert, message.XClientCertSubject: TrustClientCert,
	message.XClientCertSAN: TrustClientCert, message.XClientCertSHA256: TrustClientCert, message.ClientCertOther: TrustClientCert,
}

// needTrust are the ids that need trust.
var needTrust = func() (s message.IDs) {
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

// Believes returns what the listener accepts from a sender at that address.
func (f *Forwarding) Believes(sender netip.Addr) Trust {
	if !contains(f.trusted, sender) {
		return 0
	}
	return f.trust
}

// trustIn returns what a listener accepts from senders in its trust_forwarded.
func trustIn(l *config.Listener) Trust {
	all := TrustSender
	for _, t := range l.Trust {
		all |= trustOf[t]
	}
	return all
}

// maxHops limits the elements of X-Forwarded-For that weir reads: a trusted sender could
// send thousands.
const maxHops = 32

// FindClient finds the client that sent the request. sender is the other end of the connection,
// and trusts is what weir accepts from it. If it is trusted, the client is the rightmost address
// in X-Forwarded-For that is not trusted; if all are trusted, the leftmost. The search ends at an
// element that is not an address, because then weir does not know the sender of the elements
// before it. It also ends after maxHops elements. The client then is the last trusted address.
func (f *Forwarding) FindClient(req *message.Request, sender netip.AddrPort, trusts Trust) netip.AddrPort {
	client := sender
	if trusts&TrustFor == 0 {
		return client
	}
	hops := 0
	for i := len(req.Fields) - 1; i >= 0; i-- {
		if f := &req.Fields[i]; f.ID != message.XForwardedFor || f.Dropped {
			continue
		}
		for list, element := req.Value(i), []byte(nil); len(list) > 0; {
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
			if client = a; !contains(f.trusted, a.Addr()) {
				return client
			}
		}
	}
	return client
}

// dropUntrusted drops two kinds of headers:
//   - headers about the client that the listener does not accept from this sender
//   - headers that no endpoint may get
func (f *Forwarding) dropUntrusted(req *message.Request, trusts Trust) {
	if req.HasAny(needTrust) {
		for i := range req.Fields {
			h := &req.Fields[i]
			if h.ID == message.XRequestID {
				continue // see Identify: this exchange may have its id already
			}
			if n := needs[h.ID]; n != 0 && n&trusts == 0 && !f.keeps(req, i) {
				h.Dropped = true
			}
		}
	}
	f.DropListed(&req.Head)
}

// keeps returns true if the listener keeps header i of the request, which is dropped by
// default.
func (f *Forwarding) keeps(req *message.Request, i int) bool {
	return f.lists != nil && f.lists.keep.Has(req.Name(i))
}

// DropListed drops the headers in the listener's drop_headers, in any spelling.
func (f *Forwarding) DropListed(h *message.Head) {
	if f.lists == nil || f.lists.drop == nil {
		return
	}
	for i := range h.Fields {
		if f.lists.drop.HasAlike(h.Name(i)) {
			h.Fields[i].Dropped = true
		}
	}
}
