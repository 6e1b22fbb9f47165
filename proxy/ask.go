package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
	"github.com/weirproxy/weir/proxy/message"
)

// errAskLoop is the error of a question that came back to weir too often.
var errAskLoop = errors.New("routing loop: the request to the server that decides has reached this proxy as often as limits.loop allows; check its URL")

// Ask sends the question of a guard to a server, and waits for the response. The client's
// connection interrupts the wait when it ends.
func (x *exchange) Ask(of *filter.Question) error {
	if x.visits() >= x.proxy.mostVisits() {
		return errAskLoop
	}
	b := of.Decider.(*backend.Backend)
	q := x.proxy.newInquiry(b)
	defer q.release()
	if err := x.ask(q, of); err != nil {
		return fmt.Errorf("requesting %s from backend %q: %w", message.Quote(of.Path), b.Name(), err)
	}
	of.Read(&q.res, q.body)
	return nil
}

// ask makes the inquiry for a question.
func (x *exchange) ask(q *inquiry, of *filter.Question) error {
	host := of.Host
	if host == "" {
		host = string(x.req.Bytes(x.req.Host))
	}
	q.req.RawTargets = x.req.RawTargets // the target may be that of the client
	if err := q.begin(cmp.Or(of.Method, "GET"), host, of.Path); err != nil {
		return err
	}
	q.texts = len(of.Path) + cap(of.Body)
	if n := len(of.Body); n > 0 {
		q.content, q.req.Length = of.Body, int64(n)
		q.req.Add(message.ContentLength, strconv.AppendInt(nil, int64(n), 10))
	}
	of.Write(&q.req)
	x.edge.forwarding.DropListed(&q.req.Head)
	addVisit(&q.req)
	q.most, q.patience, q.account, q.address = of.Most, of.Patience, x.account, x.client.Addr()
	q.discardGood, q.discard, q.out = !of.Whole, of.Discard, x.outgoing()
	if !x.cover(0) {
		return message.ErrMemory
	}
	x.wire.CutAlso(q)
	defer x.relink()
	o := q.run()
	switch {
	case o == nil:
		return nil
	case q.cutFor() == "" && q.WasCut():
		return errClientGone
	}
	return o.err
}
