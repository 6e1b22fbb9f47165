package config

import "github.com/weirproxy/weir/proxy/script"

// Script is the nginx configuration of the snippets of an object, as far as package script knows it.
type Script struct {
	Host, Location string // of the host, and of the paths
	// Namespace and Object are the values of the variables of nginx for the object.
	Namespace, Object string
	Refuses           bool // it may answer requests itself
}

// Parse reads the script. The error names what weir does not support.
func (s *Script) Parse() (*script.Program, error) {
	return script.Parse(s.Host, s.Location, map[string]string{"namespace": s.Namespace, "ingress_name": s.Object})
}

// mayRefuse reports whether there is a script that may answer requests itself.
func (s *Script) mayRefuse() bool { return s != nil && s.Refuses }
