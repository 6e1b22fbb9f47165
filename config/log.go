package config

// Log is weir's own log.
type Log struct {
	Level  string // debug, info, warn, error
	Format string // json, console, or auto: console on a terminal, json otherwise
}
