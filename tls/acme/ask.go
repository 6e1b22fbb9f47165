package acme

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// asker asks a URL whether a name is allowed. It remembers answers for a short time, so
// that clients that try many names cannot overload the URL's server.
type asker struct {
	url    string
	client *http.Client
	slots  chan struct{}

	mu      sync.Mutex
	answers map[string]answer
	told    time.Time // time of the last error that was reported
}

type answer struct {
	ok    bool
	err   error
	until time.Time
}

const (
	askTimeout  = 5 * time.Second
	askAtOnce   = 16
	maxAnswers  = 10000
	answerFor   = time.Minute
	errorFor    = 5 * time.Second
	tellOfError = time.Minute
)

func newAsker(at string) *asker {
	client := &http.Client{Timeout: askTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the 200 of a login page, for example, allows nothing
	}}
	return &asker{url: at, client: client, slots: make(chan struct{}, askAtOnce), answers: make(map[string]answer)}
}

// ask reports whether weir may obtain a certificate for name. news reports whether the
// caller should report the error.
func (a *asker) ask(ctx context.Context, name string) (ok, news bool, err error) {
	if one, known := a.recall(name); known {
		return one.ok, false, one.err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	select {
	case a.slots <- struct{}{}:
	case <-ctx.Done():
		return false, false, fmt.Errorf("too many names wait for an answer from %s (on_demand.ask)", a.url)
	}
	ok, err = a.get(ctx, name)
	<-a.slots
	return ok, a.remember(name, ok, err), err
}

func (a *asker) get(ctx context.Context, name string) (bool, error) {
	u, err := url.Parse(a.url)
	if err != nil {
		return false, err
	}
	q := u.Query()
	q.Set("domain", name)
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, err
	}
	res, err := a.client.Do(req)
	if err != nil {
		return false, err
	}
	io.Copy(io.Discard, io.LimitReader(res.Body, 4096)) // so that the client can reuse the connection
	res.Body.Close()
	if res.StatusCode >= http.StatusInternalServerError {
		return false, fmt.Errorf("%s answered %s", a.url, res.Status)
	}
	return res.StatusCode == http.StatusOK, nil
}

func (a *asker) recall(name string) (answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one, known := a.answers[name]
	return one, known && time.Now().Before(one.until)
}

func (a *asker) remember(name string, ok bool, err error) (news bool) {
	now := time.Now()
	one := answer{ok, err, now.Add(answerFor)}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		one.until = now.Add(errorFor)
		if news = now.Sub(a.told) > tellOfError; news {
			a.told = now
		}
	}
	if len(a.answers) >= maxAnswers {
		clear(a.answers)
	}
	a.answers[name] = one
	return news
}
