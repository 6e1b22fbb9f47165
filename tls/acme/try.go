package acme

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
)

// try is one attempt to obtain a certificate. certmagic reports its progress by events,
// while it holds the lock of the name. So the record of attempts in the storage is
// correct even with several processes, and after a crash.
type try struct {
	*keeper
	engine *engine
	old    *held // nil: there is no certificate yet
	force  bool  // renew also a certificate that is not due

	probing  bool // this attempt finds out whether the authority answers
	asked    bool // the authority was asked
	got      bool
	err      error // the error that certmagic reported
	record   record
	previous record
}

type tryKey struct{}

// laterError refuses an attempt that is too early: the record of an earlier attempt names
// a later time.
type laterError struct {
	until time.Time
	why   string // the error of the earlier attempt; empty: unknown
}

func (e *laterError) Error() string {
	text := "not before " + e.until.UTC().Format(time.RFC3339) + ", because an earlier attempt failed"
	if e.why != "" {
		text += ": " + e.why
	}
	return text
}

// make runs the attempt. If it returns no error, the storage has a certificate.
func (t *try) make(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, tryKey{}, t), t.a.patience)
	defer cancel()
	// certmagic's functions with Sync in their names make one attempt. They ask on
	// standard input for a missing address or consent; template sets both.
	if t.old == nil && !t.force {
		return t.engine.config.ObtainCertSync(ctx, t.name)
	}
	return t.engine.config.RenewCertSync(ctx, t.name, t.force)
}

// cause returns the error to report for an attempt that ended with err: the authority's
// answer, without the names of certmagic's functions around it.
func (t *try) cause(err error) error {
	if t.err != nil {
		err = t.err
	}
	var p acme.Problem
	if errors.As(err, &p) {
		return fmt.Errorf("the certificate authority answered: %s (%s)", detail(p), strings.TrimPrefix(p.Type, acme.ProblemTypeNamespace))
	}
	return err
}

func detail(p acme.Problem) string {
	s := p.Detail
	for _, sub := range p.Subproblems {
		s += "; " + sub.Detail
	}
	if s == "" {
		s = p.Title
	}
	return s
}

// onEvent receives certmagic's events. If it returns an error, certmagic does not ask the
// authority.
func (a *authority) onEvent(ctx context.Context, event string, data map[string]any) error {
	t, _ := ctx.Value(tryKey{}).(*try)
	if t == nil {
		return nil
	}
	switch event {
	case "cert_obtaining":
		return t.begin(ctx)
	case "cert_failed":
		t.err, _ = data["error"].(error)
		t.failed(ctx)
	case "cert_obtained":
		t.got = true
		ctx, cancel := lastly(ctx)
		defer cancel()
		t.engine.config.Storage.Delete(ctx, a.recordKey(t.engine, t.name))
	}
	return nil
}

// lastly returns a context for work that must be done even after ctx has ended.
func lastly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}

// record describes the failed attempts for a name. weir keeps it in the storage.
type record struct {
	Settings string    `json:"settings"` // with other settings, weir tries again at once
	Failures int       `json:"failures"`
	Next     time.Time `json:"next"`
	Error    string    `json:"error,omitempty"`
	// UnderWay reports that an attempt began and has not ended. If its process died, it
	// never will.
	UnderWay bool `json:"under_way,omitempty"`
}

// recordKey returns the key of the record. It is beside the certificate, so each kind of
// key has its own record.
func (a *authority) recordKey(e *engine, name string) string {
	return path.Join(certmagic.StorageKeys.CertsSitePrefix(e.issuer.IssuerKey(), name), "attempts.json")
}

func (a *authority) loadRecord(ctx context.Context, e *engine, name string) (r record, err error) {
	text, err := e.config.Storage.Load(ctx, a.recordKey(e, name))
	if errors.Is(err, fs.ErrNotExist) {
		return record{Settings: a.key}, nil
	}
	if err != nil {
		return r, err
	}
	if json.Unmarshal(text, &r) != nil || r.Settings != a.key {
		r = record{Settings: a.key}
	}
	return r, nil
}

func (t *try) storeRecord(ctx context.Context, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return t.engine.config.Storage.Store(ctx, t.a.recordKey(t.engine, t.name), text)
}

// tooEarly returns an error if the time of the next attempt for a name has not come. nil means
// that the caller may begin an attempt; begin checks the time again, under the lock of the
// name. The result is nil in two other cases. While another process makes an attempt, the caller
// waits for the lock of the name, and finds the certificate afterwards. If the storage does not
// work, the attempt fails with its error.
func (a *authority) tooEarly(ctx context.Context, e *engine, name string) *laterError {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	r, _ := a.loadRecord(ctx, e, name)
	if r.UnderWay || !time.Now().Before(r.Next) {
		return nil
	}
	return &laterError{r.Next, r.Error}
}

// begin stores the attempt in the record before weir makes it, as if it had failed.
// Otherwise a process that dies during the attempt would try again at each start.
func (t *try) begin(ctx context.Context) error {
	if t.old != nil && t.isRevoked(t.old) && t.isReplaced(ctx) {
		return certmagic.ErrNoRetry{Err: errReplaced}
	}
	if err := t.probe(ctx); err != nil {
		return certmagic.ErrNoRetry{Err: err}
	}
	r, err := t.a.loadRecord(ctx, t.engine, t.name)
	if err != nil {
		return certmagic.ErrNoRetry{Err: fmt.Errorf("cannot read the time of the next attempt: %w", err)}
	}
	if time.Now().Before(r.Next) {
		return certmagic.ErrNoRetry{Err: &laterError{r.Next, r.Error}}
	}
	t.previous, t.record = r, r
	t.record.Failures++
	t.record.UnderWay = true
	t.record.Next = time.Now().Add(t.delay(t.record.Failures, nil))
	if err := t.storeRecord(ctx, t.record); err != nil {
		return certmagic.ErrNoRetry{Err: fmt.Errorf("cannot store the attempt: %w", err)}
	}
	t.asked = true
	return nil
}

// errUnanswered postpones an attempt, because another one still waits for the authority.
var errUnanswered = errors.New("the authority has not answered an attempt for another name yet")

// probe lets only one attempt at a time through while weir does not know whether the
// authority answers. Many attempts that wait for an authority that hangs would block
// attempts at other authorities: acmez fetches all directories under one lock, and
// certmagic has one lock in each storage for all registrations of accounts.
func (t *try) probe(ctx context.Context) error {
	if t.a.answered.Load() {
		return nil
	}
	timer := time.NewTimer(time.Minute) // the attempt holds the lock of the name meanwhile
	defer timer.Stop()
	select {
	case t.a.probing <- struct{}{}:
		if t.probing = !t.a.answered.Load(); !t.probing {
			<-t.a.probing
		}
		return nil
	case <-timer.C:
		return errUnanswered
	case <-ctx.Done():
		return errUnanswered
	}
}

// probePause is the pause after an attempt that the authority did not answer, before the next
// attempt for any name. Attempts at other authorities get the locks meanwhile.
const probePause = 5 * time.Second

// heard records whether the authority answered the attempt, which has ended.
func (t *try) heard(ctx context.Context) {
	if t.asked && ctx.Err() == nil {
		t.a.answered.Store(!isUnheard(t.err))
	}
	switch {
	case !t.probing:
	case t.asked && isUnheard(t.err):
		time.AfterFunc(probePause, func() { <-t.a.probing })
	default:
		<-t.a.probing
	}
}

// errReplaced ends the renewal of a certificate that another process replaced.
var errReplaced = errors.New("the certificate was replaced in the meantime")

// isReplaced reports whether the storage has another certificate than the old one.
func (t *try) isReplaced(ctx context.Context) bool {
	text, err := t.engine.config.Storage.Load(ctx, certmagic.StorageKeys.SiteCert(t.engine.issuer.IssuerKey(), t.name))
	if err != nil {
		return false
	}
	block, _ := pem.Decode(text)
	return block != nil && !bytes.Equal(block.Bytes, t.old.Leaf.Raw)
}

// failed stores the result of the failed attempt in the record.
func (t *try) failed(ctx context.Context) {
	ended := errors.Is(ctx.Err(), context.Canceled) // weir stops, or the name was removed: this is no failure
	ctx, cancel := lastly(ctx)
	defer cancel()
	if ended {
		t.record = t.previous
	} else {
		t.record.UnderWay = false
		t.record.Next = time.Now().Add(t.delay(t.record.Failures, t.err))
		if t.err != nil {
			t.record.Error = t.cause(t.err).Error()
		}
	}
	t.storeRecord(ctx, t.record) // if this fails, the record of begin stays
}

// The delays after consecutive failures. A CA such as Let's Encrypt accepts five failed
// validations of a name per hour. An attempt that never reached the authority does not
// count there, so weir repeats it sooner.
var (
	delays   = []time.Duration{time.Minute, 5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour}
	unheard  = []time.Duration{5 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute}
	tooOften = time.Hour // minimum, if the authority reports too many requests
)

// delay returns the pause after this number of consecutive failures; err is the last one.
// If the served certificate ends soon, weir tries more often.
func (t *try) delay(failures int, err error) time.Duration {
	list := delays
	if _, isProblem := problemOf(err); !isProblem && isUnheard(err) {
		list = unheard
	}
	d := list[min(failures, len(list))-1]
	if t.old != nil {
		if left := time.Until(t.old.Leaf.NotAfter); left > 0 {
			d = min(d, max(left/10, leastPause))
		}
	}
	if p, _ := problemOf(err); p.Type == acme.ProblemTypeRateLimited {
		d = max(d, tooOften)
	}
	return jitter(d)
}

func problemOf(err error) (p acme.Problem, is bool) {
	is = errors.As(err, &p)
	return p, is
}

// isUnheard reports whether err means that weir could not reach the authority.
func isUnheard(err error) bool {
	var u *url.Error
	return errors.As(err, &u)
}
