package config

// Log is weir's own log.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // json, console, or auto: console on a terminal, json otherwise
}

// AccessLog is one JSON line per exchange and tunnel.
type AccessLog struct {
	Path string // "stdout", "stderr", NoAccessLog, or a file that is reopened on SIGHUP
	// Sample is the share, above 0 and up to 1, of the good requests that have a line. A
	// request is good if its status is below 400 and weir has no reason to report. All other
	// requests, tunnels and refused connections have a line.
	Sample float64
	// Redact names query parameters whose values weir does not log; lower case.
	Redact []string
}

// NoAccessLog as a path turns the access log off.
const NoAccessLog = "off"
