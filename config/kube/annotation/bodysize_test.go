package annotation

import (
	"maps"
	"reflect"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestBodySize(t *testing.T) {
	for value, want := range map[string]struct {
		size   int64
		rating Rating
	}{
		"0": {0, Exact}, "1": {1, Exact}, "1000": {1000, Exact}, "8k": {8 << 10, Exact}, "50m": {50 << 20, Exact}, "50M": {50 << 20, Exact},
		"2g": {2 << 30, Exact}, "2G": {2 << 30, Exact}, " 1m\n": {1 << 20, Exact}, "0m": {0, Exact}, "8589934591g": {8589934591 << 30, Exact},
		"": {0, No}, "m": {0, No}, "50mb": {0, No}, "10b": {0, No}, "1.5m": {0, No}, "-1": {0, No}, "+1": {0, No}, "1 m": {0, No}, "unlimited": {0, No},
		"8589934592g": {0, No}, "9223372036854775808": {0, No}, "1K ": {1 << 10, Exact}, "1\v": {1, Exact}, "1t": {0, No},
	} {
		i := ingressWith(map[string]string{"proxy-body-size": value})
		if got := SettingsOf(i).MaxBody; got != want.size {
			t.Errorf("%q sets a limit of %d bytes, want %d", value, got, want.size)
		}
		checkRating(t, i, want.rating)
	}
}

// Two spellings of one name have the same result in each order of the map.
func TestSpellingsOfOneName(t *testing.T) {
	for range 20 {
		i := &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			Nginx + "Proxy-Body-Size": "1m", Nginx + "proxy-body-size": "2m", Nginx + "PROXY-body-size": "3m", Traefik + "proxy-body-size": "4m", "proxy-body-size": "5m"}}}
		if got := SettingsOf(i).MaxBody; got != 2<<20 {
			t.Fatalf("the limit is %d bytes, want that of the name in lower case", got)
		}
	}
}

// What an annotation that weir does not support says has no effect on the settings.
func TestUnsupportedSetsNothing(t *testing.T) {
	for name, j := range nginx {
		for _, value := range []string{"", "true", "off", "1", "10m", "anything at all\nof it"} {
			var s Settings
			if j.set == nil {
				continue
			}
			if rating, _ := j.set(value, context{}, &s); (rating == No || rating == guard) && !reflect.DeepEqual(s, Settings{}) {
				t.Errorf("%s: %q is %s, but sets %+v", name, value, rating, s)
			}
		}
	}
}

func init() {
	maps.Copy(samples, map[string][]sample{
		"proxy-body-size": {{"numbers, also with `k`, `m` or `g`", "8m", false}, {"other values", "8mb", false}},
	})
}
