package accesslog

import (
	"strings"
	"testing"
)

func TestRedaction(t *testing.T) {
	d := NewRedaction([]string{"token", "Code", "api key", "a+b"})
	f := func(url, want string) {
		t.Helper()
		if got := string(d.Append(nil, []byte(url))); got != want {
			t.Errorf("%q is logged as %q, not %q", url, got, want)
		}
	}
	for _, same := range []string{"", "/", "/?", "/token=a", "/x?tok=a&tokens=b&xtoken=c", "/?token", "/?a=token&b=code", "/?&&==&token", "*", "/?%=a&%t=b&%74%=c",
		"/?" + strings.Repeat("t", 1000) + "=a", "/?to+ken=a&token+x=b&+=c&=d&token%2=e"} {
		f(same, same)
	}
	f("/cb?token=secret", "/cb?token=***")
	f("/cb?token=", "/cb?token=***")
	f("/cb?a=1&code=x&b=2", "/cb?a=1&code=***&b=2")
	f("/cb?code=x&token=y", "/cb?code=***&token=***")
	f("/cb?code=x&code=y&", "/cb?code=***&code=***&")
	f("/cb?TOKEN=x", "/cb?TOKEN=***")
	f("/cb?t%6fke%6E=x", "/cb?t%6fke%6E=***")
	f("/cb?%74oken=x&+token=y&++tok%65n=z", "/cb?%74oken=***&+token=***&++tok%65n=***")
	f("/cb?token+=x&%20token%20=y&%2btoken=z", "/cb?token+=***&%20token%20=***&%2btoken=***")
	f("/cb?api+key=x&API%20Key=y&+api+key++++++=z", "/cb?api+key=***&API%20Key=***&+api+key++++++=***")
	f("/cb?a+b=x&a%2Bb=y&a%20b=z", "/cb?a+b=***&a%2Bb=***&a%20b=***")
	f("/cb?a=1;token=x;b=2&c=3", "/cb?a=1;token=***&c=3")
	f("/cb?token=a;b?c=d=e&f", "/cb?token=***&f")
	f("https://a.example/cb?token=x#y", "https://a.example/cb?token=***")
	url, out := []byte("/a?b=c&token=e"), make([]byte, 0, 100)
	if n := testing.AllocsPerRun(100, func() { out = d.Append(out[:0], url) }); n != 0 {
		t.Errorf("a URL takes %v allocations", n)
	}
}
