package kube

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/weirproxy/weir/config"
)

// sessionCookie is the name of the cookie if a rule does not name its session.
const sessionCookie = "weir-session"

// sessionOf converts the session persistence of a rule (GEP-1619): weir keeps sessions by a cookie. The
// error is a sentence. nil: the rule has none.
func sessionOf(from *gatewayv1.SessionPersistence) (*config.StickyCookie, error) {
	if from == nil {
		return nil, nil
	}
	if pointed(from.Type) == gatewayv1.HeaderBasedSessionPersistence {
		return nil, errors.New("sessionPersistence.type is Header, but weir keeps sessions only by cookies; write Cookie")
	}
	s := &config.StickyCookie{Name: cmp.Or(pointed(from.SessionName), sessionCookie), Path: "/", Moves: true}
	if err := config.CheckCookieName(s.Name); err != nil {
		return nil, fmt.Errorf("sessionPersistence.sessionName %q %w", s.Name, err)
	}
	permanent := from.CookieConfig != nil && pointed(from.CookieConfig.LifetimeType) == gatewayv1.PermanentCookieLifetimeType
	if from.AbsoluteTimeout == nil {
		if permanent {
			return nil, errors.New("sessionPersistence has a permanent cookie, but no absoluteTimeout")
		}
		return s, nil
	}
	if !permanent {
		return nil, errors.New("sessionPersistence.absoluteTimeout is not supported by weir for cookies of the lifetime Session; write cookieConfig.lifetimeType: Permanent")
	}
	d, err := apiDuration(from.AbsoluteTimeout)
	if err != nil || d < time.Second {
		return nil, fmt.Errorf("sessionPersistence.absoluteTimeout %q is not a duration of at least a second", *from.AbsoluteTimeout)
	}
	s.MaxAge = config.Lifetime{Given: true, Seconds: int64(d / time.Second)}
	return s, nil
}
