package file

import "testing"

func TestReplace(t *testing.T) {
	env := func(name string) (string, bool) {
		value, ok := map[string]string{"PORT": "9009", "EMPTY": ""}[name]
		return value, ok
	}
	f := func(in, want string) {
		t.Helper()
		got, _, err := replace(in, env)
		if err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", in, got, err, want)
		}
	}
	f("", "")
	f("plain", "plain")
	f("${PORT}", "9009")
	f("a${PORT}b${PORT}", "a9009b9009")
	f("${NOBODY:-x y}", "x y")
	f("${EMPTY:-x}", "x")
	f("${EMPTY}", "")
	f("${NOBODY:-}", "")
	f("${PORT:-x}", "9009")
	f("$$", "$")
	f("$${PORT}", "${PORT}")
	f("$$${PORT}$$", "$9009$")
	f("~/a(/|$)", "~/a(/|$)")
	f("$1/$2$", "$1/$2$")
	f("$", "$")
	f("$$$", "$$")
	f("$ ${PORT}$", "$ 9009$")
	f("${NOBODY:-$}", "$") // a default is not expanded
}
