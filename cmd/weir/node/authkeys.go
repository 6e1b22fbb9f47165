package node

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/proxy/backend"
	"github.com/weirproxy/weir/proxy/filter"
)

// Limits of a request for the keys of an entry of auth.
const (
	mostKeyBytes = 1 << 20
	keyPatience  = 10 * time.Second
)

// requestKeys requests the keys of an entry of auth from the server of its URL.
func (s *server) requestKeys(ctx context.Context, server filter.Decider, target string) ([]byte, error) {
	answer, err := s.proxy.Get(ctx, server.(*backend.Backend), target, mostKeyBytes, keyPatience)
	if err != nil {
		return nil, err
	}
	if answer.Status != http.StatusOK {
		return nil, fmt.Errorf("the server answered %d; weir needs 200, and follows no redirects", answer.Status)
	}
	return answer.Body, nil
}

// keysRequested logs that keys from a URL are in use, or that weir cannot get them.
func (s *server) keysRequested(entry, url string, err error) {
	about := []zap.Field{zap.String("auth", entry), zap.String("url", url)}
	if err != nil {
		s.log.Error("weir cannot get keys from a URL; the last good keys, if there are any, stay in use", append(about, zap.Error(err))...)
		return
	}
	s.log.Info("keys from a URL are in use", about...)
}
