//go:build !linux

package node

import (
	"errors"

	"go.uber.org/zap"

	"github.com/weirproxy/weir/config"
)

// confine does nothing: only Linux has capabilities, no_new_privs and Landlock.
func confine(cfg *config.Config) (*confined, error) {
	if cfg.User != "" {
		return nil, errors.New("user: weir changes its user only on Linux; start weir as that user, and remove the key user")
	}
	return &confined{Missing: []string{"weir drops privileges on Linux alone"}}, nil
}

func keepInput(path string) (string, error) { return path, nil }

func privileges() []zap.Field { return nil }

func (a account) unwritable([]written) []error { return nil }
