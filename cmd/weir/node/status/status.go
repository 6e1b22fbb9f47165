// Package status describes a running weir to people. The admin port serves the Overview as JSON. The
// status page shows it in a browser, weir top in a terminal. Package node fills the Overview.
package status

import "time"

// Overview is the state of one weir. Lists have one page of their rows, because there may be ten
// thousand routes.
type Overview struct {
	At         time.Time `json:"at"`
	Version    string    `json:"version"`
	PID        int       `json:"pid"`
	Node       string    `json:"node"`
	ConfigHash string    `json:"config_hash"`
	// ConfigFile is the file that weir was started with, and ConfigLoaded when its content took effect.
	ConfigFile   string    `json:"config_file"`
	ConfigLoaded time.Time `json:"config_loaded"`
	// Uptime is in seconds.
	Uptime float64 `json:"uptime"`
	// Refresh is how long a program should wait before it asks again, in seconds.
	Refresh      float64           `json:"refresh"`
	Health       Health            `json:"health"`
	Generation   int               `json:"generation"`    // of this process: one more after each upgrade
	OldProcesses []OldProcess      `json:"old_processes"` // of upgrades, the oldest first
	Problems     []Problem         `json:"problems"`      // of the whole weir, the oldest first
	Traffic      Traffic           `json:"traffic"`
	Connections  Connections       `json:"connections"`
	Listeners    []Listener        `json:"listeners"`
	Routes       List[Route]       `json:"routes"`
	Backends     List[Backend]     `json:"backends"`
	Certificates List[Certificate] `json:"certificates"`
	TLS          TLS               `json:"tls"`
	Refusals     []Refusal         `json:"refusals"`          // the latest one first
	Events       []Event           `json:"events"`            // the latest one first
	Objects      *Objects          `json:"objects,omitempty"` // nil: weir serves no cluster
}

// Health is what the health port answers, and why.
type Health struct {
	Healthy  bool     `json:"healthy"`
	Ready    bool     `json:"ready"` // weir itself can serve
	Cordoned bool     `json:"cordoned"`
	Draining bool     `json:"draining"`
	Reasons  []string `json:"reasons"` // sentences; empty if Healthy
	Drain    *Drain   `json:"drain,omitempty"`
}

// OldProcess is a process that has left to another one in an upgrade, and still has connections.
type OldProcess struct {
	Generation  int       `json:"generation"` // 1 is the first process
	PID         int       `json:"pid"`
	Binary      string    `json:"binary,omitempty"`  // path; empty: unknown
	Version     string    `json:"version,omitempty"` // empty: unknown
	Since       time.Time `json:"since,omitzero"`    // when it left; zero: it is about to
	Until       time.Time `json:"until,omitzero"`    // the end of drain.timeout; zero: unknown
	Connections int       `json:"connections"`
	Active      int       `json:"active"` // those with a request or a tunnel
}

// Problem is a problem of the whole weir that lasts, such as a configuration that could not be
// loaded. Backends, certificates and objects have their problems in their own lists.
type Problem struct {
	Since time.Time `json:"since"`
	Text  string    `json:"text"`
}

// Drain says whether load balancers have noticed a drain. Times are in seconds.
type Drain struct {
	Seconds           float64 `json:"seconds"` // since its beginning
	NewConnections    int     `json:"new_connections"`
	LastNewConnection float64 `json:"last_new_connection"` // after the beginning; 0: there was none
	// LastNewConnectionFrom is the address of its peer; empty: there was none, or it came by a Unix socket.
	LastNewConnectionFrom string `json:"last_new_connection_from,omitempty"`
	LoadBalancersTold     bool   `json:"load_balancers_told"` // each has seen two answers 503
	// LoadBalancersNotTold are the addresses of those that have not, 16 at most.
	LoadBalancersNotTold []string `json:"load_balancers_not_told,omitempty"`
}

// Rates are the traffic in a time.
type Rates struct {
	// Seconds is the length of the time. 0: weir has not observed any time yet.
	Seconds  float64 `json:"seconds"`
	Requests float64 `json:"requests"` // per second
	Errors   float64 `json:"errors"`   // responses with a status from 500, per second
	Refused  float64 `json:"refused"`  // responses with a status from 400 to 499, per second
	// The percentiles are in seconds; 0: there was no request.
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Traffic is the traffic of all routes.
type Traffic struct {
	Now  Rates   `json:"now"`  // the last 5 to 15 seconds
	Hour Rates   `json:"hour"` // the last hour, or since the start
	Past []Point `json:"past"` // the last hour, the oldest first
	// Total is the number of requests since the start.
	Total uint64 `json:"total"`
}

// Point is the traffic of some seconds of the last hour.
type Point struct {
	At          time.Time `json:"at"` // the end
	Requests    float64   `json:"requests"`
	Errors      float64   `json:"errors"`
	P50         float64   `json:"p50"`
	P99         float64   `json:"p99"`
	Connections int       `json:"connections"` // at the end
}

// Connections are the open connections of clients, and their memory in bytes.
type Connections struct {
	Open   int            `json:"open"`
	States map[string]int `json:"states"`
	Parked int            `json:"parked"` // part of the idle ones and of the tunnels
	// Resident is the resident memory of the process. Held is the part that peers make weir
	// hold, such as header lists and bodies; HeldLimit is its limit, 0: none.
	Resident  uint64 `json:"resident"`
	Held      int64  `json:"held"`
	HeldLimit int64  `json:"held_limit"`
	// PerConnection is Resident divided by Open; 0 if there are fewer than a thousand
	// connections, because the memory of weir itself would count most.
	PerConnection uint64 `json:"per_connection"`
}

// Listener is a listener and its open connections.
type Listener struct {
	Name     string         `json:"name"`
	Protocol string         `json:"protocol"`
	Address  string         `json:"address"`
	Open     int            `json:"open"`
	States   map[string]int `json:"states"`
	Parked   int            `json:"parked"`
}

// List is one page of a list.
type List[T any] struct {
	All      int `json:"all"`      // rows without the search
	Matching int `json:"matching"` // rows that match the search
	Bad      int `json:"bad"`      // rows of all with a problem
	Page     int `json:"page"`     // from 1
	Pages    int `json:"pages"`
	Rows     []T `json:"rows"`
}

// Route is a route with its traffic.
type Route struct {
	Name     string   `json:"name"` // empty: requests that no route matched
	Hosts    []string `json:"hosts"`
	Position string   `json:"position,omitempty"` // in the configuration
	Backend  string   `json:"backend,omitempty"`
	Total    uint64   `json:"total"`   // requests since the start
	Failed   uint64   `json:"failed"`  // with a status from 500
	Tunnels  int      `json:"tunnels"` // open now
	Now      Rates    `json:"now"`
}

// Backend is a backend and its endpoints. At most MostEndpoints of them are listed.
type Backend struct {
	Name      string     `json:"name"`
	Ready     int        `json:"ready"`
	Working   int        `json:"working"` // of the ready endpoints
	Count     int        `json:"count"`   // endpoints
	Down      int        `json:"down"`    // endpoints that get no requests because they have a problem
	InFlight  int64      `json:"in_flight"`
	Waiting   int64      `json:"waiting"`
	Endpoints []Endpoint `json:"endpoints"` // those with a problem first
}

// MostEndpoints limits the endpoints of one backend in an Overview.
const MostEndpoints = 20

// Endpoint is an endpoint of a backend.
type Endpoint struct {
	Address  string `json:"address"`
	Host     string `json:"host,omitempty"`
	State    string `json:"state"` // up, down, failing, ejected or terminating
	Local    bool   `json:"local"`
	InFlight int64  `json:"in_flight"`
	Error    string `json:"error,omitempty"` // the last one, if the endpoint has a problem
}

// Certificate is a certificate in use, or one that weir cannot obtain.
type Certificate struct {
	Names    []string  `json:"names"`
	Source   string    `json:"source"`             // the file, the Secret, acme or self-signed
	NotAfter time.Time `json:"not_after,omitzero"` // zero: there is no certificate yet
	Soon     bool      `json:"soon"`               // its renewal is overdue
	Next     time.Time `json:"next,omitzero"`      // of ACME: the next attempt after a failure
	Error    string    `json:"error,omitempty"`    // of the last attempt, if it failed
}

// TLS counts handshakes by version, and lists clients that need an old version.
type TLS struct {
	Since    time.Time         `json:"since"`    // the beginning of the counts
	Versions map[string]uint64 `json:"versions"` // handshakes by version, such as "TLS 1.3"
	Old      []OldClients      `json:"old"`      // the latest handshake first
}

// OldClients are clients of a host and network that negotiated TLS 1.0 or 1.1.
type OldClients struct {
	Host     string    `json:"host"`
	Network  string    `json:"network"`
	Version  string    `json:"version"`
	JA4      string    `json:"ja4"`
	Count    uint64    `json:"count"`
	LastSeen time.Time `json:"last_seen"`
}

// Refusal counts connections and requests that weir refused for one reason.
type Refusal struct {
	Where  string    `json:"where"` // the listener of a connection, or the route with most of the requests
	What   string    `json:"what"`  // connection or request
	Reason string    `json:"reason"`
	Count  uint64    `json:"count"` // since the start
	Last   time.Time `json:"last"`
	// Client is the address of a client that weir refused lately, and Detail the error. They are
	// updated once a second at most, and empty for requests.
	Client string `json:"client,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Event is something that happened to the whole weir: a reload, a drain, a backend that went down.
type Event struct {
	At   time.Time `json:"at"`
	Bad  bool      `json:"bad"`
	Text string    `json:"text"`
	// Times is how often the event occurred, with nothing else in between.
	Times int `json:"times"`
}

// Objects are the objects of the cluster that weir serves.
type Objects struct {
	Synced   bool        `json:"synced"`
	LastSync time.Time   `json:"last_sync,omitzero"`
	Trouble  string      `json:"trouble,omitempty"` // why weir cannot watch the cluster
	Faults   List[Fault] `json:"faults"`
}

// Fault is an error of an object of the cluster.
type Fault struct {
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}
