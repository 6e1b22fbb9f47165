package config

var clientLimitsRules = []*schema{when(has("burst"), has("rate"))}

// checkClientLimits reports a burst without a rate.
func (v *draft) checkClientLimits() {
	c := &v.limits.Clients
	if v.given(&c.Burst) && !v.given(&c.Rate) {
		v.failAt(v.places[&c.Burst], "has no effect without rate; write limits.clients.rate beside it, such as 400/s")
	}
}
