package config

import (
	"strings"

	"github.com/weirproxy/weir/proxy/script"
)

// Script is the nginx configuration of the snippets of an object, as far as package script knows it.
type Script struct {
	Host, Location string // of the host, and of the paths
	// Namespace and Object are the values of the variables of nginx for the object, and the others those for the path.
	Namespace, Object, Service, Port, Path, Server string
	// At is the path of the route, if the script has locations. ingress-nginx writes a location for it.
	At      Path
	Refuses bool // it may answer requests itself
}

// Parse reads the script. The error names what weir does not support.
func (s *Script) Parse() (*script.Program, error) {
	return script.Parse(s.Host, s.Location, script.Constants(s.Namespace, s.Object, s.Service, s.Port, s.Path, s.Server))
}

// describe returns the nginx configuration on one line. s may be nil.
func (s *Script) describe() string {
	if s == nil {
		return ""
	}
	var all []string
	for _, part := range [][2]string{{"server", s.Host}, {"location", s.Location}} {
		if text := strings.Join(strings.Fields(part[1]), " "); text != "" {
			all = append(all, part[0]+" { "+text+" }")
		}
	}
	return strings.Join(all, " ")
}

// covers reports whether a request that s refuses is refused by o as well. s and o may be nil.
func (o *Script) covers(s *Script) bool {
	return !s.mayRefuse() || o != nil && o.Host == s.Host && o.Location == s.Location && o.Namespace == s.Namespace && o.Object == s.Object
}

// mayRefuse reports whether there is a script that may answer requests itself.
func (s *Script) mayRefuse() bool { return s != nil && s.Refuses }
