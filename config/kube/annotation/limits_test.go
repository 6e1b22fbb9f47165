package annotation

import (
	"fmt"
	"strings"
	"testing"
)

func TestLimits(t *testing.T) {
	f := func(want, why string, pairs ...string) {
		t.Helper()
		values := valuesOf(pairs...)
		i := ingressWith(values)
		for name, value := range values {
			if strings.Contains(name, "status-code") {
				delete(i.Annotations, Nginx+name)
				i.Annotations[OfController+name] = value
			}
		}
		closed, got := ratingsOf(i)
		if text := fmt.Sprintf("%+v", SettingsOf(i).Limits); closed || text != want || !strings.Contains(got, why) || why == "" && got != "" {
			t.Errorf("%q sets %s because of %q", pairs, text, got)
		}
	}
	const none = "{PerSecond:0 PerMinute:0 Multiplier:0 Open:0 Except:[] RateStatus:0 OpenStatus:0}"
	f("{PerSecond:5 PerMinute:0 Multiplier:5 Open:0 Except:[] RateStatus:503 OpenStatus:503}", "IPv6", "limit-rps", "5")
	f("{PerSecond:5 PerMinute:60 Multiplier:2 Open:7 Except:[10.0.0.0/8 192.0.2.1/32] RateStatus:429 OpenStatus:508}", "IPv6", "limit-rps", "5", "limit-rpm", "60", "limit-connections", "7",
		"limit-burst-multiplier", "2", "limit-whitelist", "10.0.0.0/8, 192.0.2.1", "limit-req-status-code", "429", "limit-conn-status-code", "508")
	f("{PerSecond:1 PerMinute:0 Multiplier:0 Open:0 Except:[10.0.0.0/8] RateStatus:503 OpenStatus:503}", "IPv6", "limit-rps", "1", "limit-allowlist", "10.0.0.0/8", "limit-whitelist", "11.0.0.0/8", "limit-burst-multiplier", "0", "limit-req-status-code", "200")
	f("{PerSecond:1000000 PerMinute:0 Multiplier:5 Open:0 Except:[] RateStatus:503 OpenStatus:503}", "at most 1000000", "limit-rps", "5000000")
	f("{PerSecond:1 PerMinute:0 Multiplier:5 Open:0 Except:[] RateStatus:503 OpenStatus:503}", "uses 5", "limit-rps", "1", "limit-burst-multiplier", "-1")
	f("{PerSecond:1 PerMinute:0 Multiplier:5 Open:0 Except:[] RateStatus:503 OpenStatus:503}", "counts the requests of all clients", "limit-rps", "1", "limit-whitelist", "office")
	f(none, "", "limit-rps", "0", "limit-connections", "-1", "limit-whitelist", "office")
	f(none, "applies no limit", "limit-rps", "5r/s")
	f(none, "", "limit-rate", "0", "limit-rate-after", "5")
	f(none, "as fast as clients read", "limit-rate", "5")
}

func init() {
	add := func(name, words, value string) {
		others[words] = map[string]string{"limit-rps": "1", name: value}
		samples[name] = append(samples[name], sample{words, value, false})
	}
	for _, name := range []string{"limit-rps", "limit-rpm", "limit-connections"} {
		add(name, "numbers up to `1000000` in `"+name+"`", "1")
		add(name, "larger numbers in `"+name+"`", "1000001")
		add(name, "`0` in `"+name+"`", "0")
		add(name, "other texts in `"+name+"`", "x")
	}
	add("limit-burst-multiplier", "numbers  ", "1")
	add("limit-burst-multiplier", "other values for a burst", "x")
	add("limit-allowlist", "networks and addresses ", "10.0.0.0/8")
	add("limit-allowlist", "other lists of networks", "x")
	add("limit-whitelist", "networks and addresses  ", "10.0.0.0/8")
	add("limit-whitelist", "other lists of networks ", "x")
}
