package node

import (
	"crypto/tls"
	"errors"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/proxy"
	"github.com/weirproxy/weir/tls/policy"
)

// Check checks the parts of a configuration that package config cannot check: ECH keys, the
// TLS policies beside each other, and the user and the addresses of this machine. Without
// an error it returns warnings, each without a position.
func Check(cfg *config.Config) (warnings []string, err error) {
	if _, err := checkTLS(cfg); err != nil {
		return nil, err
	}
	return append(warnUser(cfg), warnLocal(cfg, addressesOfMachine())...), nil
}

// checkTLS checks the parts that package config cannot check, because it uses no crypto.
// It returns the ECH keys of cfg.
func checkTLS(cfg *config.Config) ([]tls.EncryptedClientHelloKey, error) {
	keys, err := policy.ParseECH(cfg.ECHKeys)
	if err != nil {
		return nil, err
	}
	err = errors.Join(proxy.CheckECH(cfg, keys), policy.CheckSHA1(cfg.TLSPolicies, cfg.Backends))
	for i := 0; i < len(cfg.TLSPolicies) && err == nil; i++ {
		err = policy.Try(cfg.TLSPolicies[i])
	}
	return keys, err
}
