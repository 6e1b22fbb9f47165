package node

import (
	"os"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/file"
	"github.com/weirproxy/weir/config/kube/api"
)

// BuiltIn is the name of the configuration without a file, for messages.
const BuiltIn = "(built in)"

// withoutFileText is the configuration in a Pod without a configuration file.
const withoutFileText = `
listeners:
  web: {address: ":80", protocol: http}
  websecure: {address: ":443", protocol: tls}
health: {address: ":8086"}
access_log: {}
`

// withoutFile returns the configuration of a Pod in namespace that has no configuration
// file. NODE_NAME, if set, must come from the downward API.
func withoutFile(namespace string, env func(string) (string, bool)) (*config.Config, error) {
	text := withoutFileText + "kubernetes: {"
	if namespace != "" {
		text += "operator_namespaces: [" + namespace + "]"
	}
	text += "}\n"
	if name, ok := env("NODE_NAME"); ok && name != "" {
		text += "node: ${NODE_NAME}\n"
	}
	return file.Parse(BuiltIn, []byte(text), env)
}

// Load returns the configuration in the file at path; "-" is standard input. Without a path
// it returns the configuration of a Pod without a file, which serves the cluster's Ingresses.
func Load(path string) (*config.Config, error) {
	if path == "" {
		return withoutFile(api.OwnNamespace(), os.LookupEnv)
	}
	return file.Load(path, os.LookupEnv)
}
