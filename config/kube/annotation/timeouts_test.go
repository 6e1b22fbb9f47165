package annotation

import (
	"fmt"
	"maps"
	"testing"
)

func TestTimeouts(t *testing.T) {
	for _, name := range []string{"proxy-connect-timeout", "proxy-read-timeout", "proxy-send-timeout"} {
		for value, want := range map[string]string{
			"5": "5s exact", "3600": "1h0m0s exact", "2147483647": "596523h14m7s exact",
			"": "0s near", "0": "0s near", "-1": "0s near", "60s": "0s near", "1h": "0s near", "1.5": "0s near", "2147483648": "0s near", "99999999999999999999": "0s near",
		} {
			i := ingressWith(map[string]string{name: value})
			s := SettingsOf(i).Timeouts
			if got := fmt.Sprint(s.Connect+s.Read+s.Send, " ", Rate(i)[0].Rating); got != want {
				t.Errorf("%s: %q is %s, want %s", name, value, got, want)
			}
		}
	}
	i := ingressWith(map[string]string{"proxy-connect-timeout": "1", "proxy-read-timeout": "2", "proxy-send-timeout": "3"})
	if got := fmt.Sprint(SettingsOf(i).Timeouts); got != "{1s 2s 3s}" {
		t.Errorf("the timeouts are %s", got)
	}
}

func TestNextUpstream(t *testing.T) {
	const unset = "{Off:false When:[] NonIdempotent:false Attempts:0 Within:0s}"
	for _, one := range []struct{ list, tries, within, want string }{
		{list: "error timeout", want: "{Off:false When:[reset timeout] NonIdempotent:false Attempts:0 Within:0s}"},
		{list: "error  timeout http_502 http_404 ", want: "{Off:false When:[reset timeout 502 404] NonIdempotent:false Attempts:0 Within:0s}"},
		{list: "error non_idempotent", want: "{Off:false When:[reset] NonIdempotent:true Attempts:0 Within:0s}"},
		{list: "error off", tries: "5", want: "{Off:true When:[] NonIdempotent:false Attempts:5 Within:0s}"},
		{list: "http_503", want: "{Off:false When:[503] NonIdempotent:false Attempts:0 Within:0s}"},
		{list: "http_501", want: unset},
		{list: "error; http_500", want: unset},
		{tries: "2", within: "10", want: "{Off:false When:[] NonIdempotent:false Attempts:2 Within:10s}"},
		{tries: "0", within: "0", want: "{Off:false When:[] NonIdempotent:false Attempts:10 Within:0s}"},
		{tries: "-1", within: "1s", want: unset},
	} {
		i := ingressWith(given(map[string]string{"proxy-next-upstream": one.list, "proxy-next-upstream-tries": one.tries, "proxy-next-upstream-timeout": one.within}))
		if got := fmt.Sprintf("%+v", SettingsOf(i).Retries); got != one.want {
			t.Errorf("%+v is %s", one, got)
		}
		if guards, others := Unsupported(i); len(guards)+len(others) > 0 {
			t.Errorf("%+v has unsupported annotations: %q %q", one, guards, others)
		}
	}
}

func init() {
	times := []sample{{"numbers of seconds", "60", false}, {"other values", "60s", false}}
	maps.Copy(samples, map[string][]sample{
		"proxy-connect-timeout":       times,
		"proxy-read-timeout":          times,
		"proxy-send-timeout":          times,
		"proxy-next-upstream":         {{"`error` with any of `timeout`, `http_...`, `non_idempotent`; `off`", "error timeout", false}, {"without `error`", "timeout", false}, {"with `invalid_header`", "error invalid_header", false}, {"other values", "always", false}},
		"proxy-next-upstream-tries":   {{"`1` to `10`", "3", false}, {"`0` and larger numbers", "0", false}, {"other values", "x", false}},
		"proxy-next-upstream-timeout": times,
	})
}
