package config

// Log is weir's own log.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // json, console, or auto: console on a terminal, json otherwise
}

// AccessLog is one JSON line per exchange and tunnel.
type AccessLog struct {
	Path string // "stdout", "stderr", NoAccessLog, or a file that is reopened on SIGHUP
	// Redact names query parameters whose values weir does not log; lower case.
	Redact []string
}

// NoAccessLog as a path turns the access log off.
const NoAccessLog = "off"
