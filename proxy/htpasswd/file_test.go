package htpasswd

import (
	"strings"
	"testing"
)

const long = "a much longer password than sixteen or thirty-two or even sixty-four bytes, to be sure of it"

// What the commands openssl passwd, htpasswd and crypt(3) of glibc wrote.
func TestCheck(t *testing.T) {
	f := func(hash, password string) {
		t.Helper()
		file, err := Parse([]byte("# users\n\nada:" + hash + "\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		for user, passwords := range map[string]map[string]bool{
			"ada": {password: true, password + "x": false, "": password == "", "secreT": false},
			"bob": {password: false},
		} {
			for p, want := range passwords {
				if got := file.Check([]byte(user), []byte(p)); got != want {
					t.Errorf("%s %q with %s: %t", user, p, hash, got)
				}
			}
		}
	}
	f("$apr1$abCD12./$w2i/ZlUs/Y/yLJi5Hxd3v/", "secret")
	f("$apr1$abCD12./$NFuItBJuV/5g4RE9BZuxV1", long)
	f("$apr1$abCD12./$LZ4/D1qxO7Tiwg9s13sdJ0", "x")
	f("$5$abCD12./$.V/7WLSgESsnsmd2hCCNU1ewljlhFbCj5xyAP9EsQr9", "secret")
	f("$5$abCD12./$Uv8WW287LVGRFrIRhxXaZKzAZbRetBGNUVr4ZC9moX1", long)
	f("$5$rounds=77777$short$Dvn1K7VcLNC1xboNjai.hqyHxPl6O0m46vESuLJFFm9", "secret")
	f("$6$abCD12./$2MgCE6x4TOJJU7goyqDwCyAHrtaVsHwyd/HXskwh3kSYW0YCk.0GSf9LlNNsIV7jjtwlSQ60hjTYdr7nRlv3G.", "secret")
	f("$6$abCD12./$OGEwXCtXIwIz53kK9u5EIDAPu7ic17deqHE8C04xYX0uhj50aIMb.rPdG4w3GumP/s6yJX4Ri.anp/DREDr9M/", long)
	f("$6$rounds=1400$anotherlongsalts$Twf2eP6WMY29NT9yg1Nff0x6Ul/TWD9vkV2VVPyEX7uifmXI0FHGx3rX27ttfZtfB9phxv3003yyBPq3nGFb8.", "secret")
	f("$6$salt$r6qPcj2UeIkfklWHvleGJk8OKTInFYR/fxyuwcC656IWiZBpIFZ9.hMRG2ZQnnyMFrKOe461f9iT9Ljn0wJ5l.", "")
	f("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "secret")
	f("$2y$04$n2H323OnMgUPbatyCwO66OkHq8IwwMITU8ZszuhvfwtsevDosl97a", "secret")
}

// A malformed file is refused, with the line and what to do.
func TestRefused(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	f("ada", "line 1: there is no colon")
	f("# x\n:x", "line 2: the name of the user is missing")
	f(strings.Repeat("a", 256)+":x", "longer than 255 bytes")
	f("a\x01b:x", "control character")
	f("ada:secret", `user "ada": the password has no hash that weir knows`)
	f("ada:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\nada:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", `line 2: user "ada" is there twice`)
	f("ada:{SHA}5en6", "the {SHA} hash is malformed")
	f("ada:$apr1$abCD12./$w2i", "the apr1 hash is malformed")
	f("ada:$apr1$$w2i/ZlUs/Y/yLJi5Hxd3v/", "the apr1 hash is malformed")
	f("ada:$5$rounds=999$short$Dvn1K7VcLNC1xboNjai.hqyHxPl6O0m46vESuLJFFm9", "the number of rounds")
	f("ada:$5$rounds=999999$short$Dvn1K7VcLNC1xboNjai.hqyHxPl6O0m46vESuLJFFm9", "a check would take too long")
	f("ada:$6$saltsaltsaltsalts$r6qPcj2UeIkfklWHvleGJk8OKTInFYR/fxyuwcC656IWiZBpIFZ9.hMRG2ZQnnyMFrKOe461f9iT9Ljn0wJ5l.", "malformed")
	f("ada:$2y$20$wrrfvOjx7eWJUbSVwLFUPuW5wMnXpFOxPwQqTUZ5C5U1GvKCOkFmG", "a check would take too long")
	f("ada:$2y$04$short", "the bcrypt hash is malformed")
}

// For unknown users, weir computes the most expensive hash of the file.
func TestUnknownUsers(t *testing.T) {
	file, err := Parse([]byte("a:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\nb:$6$rounds=1400$x$" + strings.Repeat(".", 86) + "\nc:$apr1$x$" + strings.Repeat(".", 22)))
	if err != nil {
		t.Fatal(err)
	}
	if file.Users() != 3 || file.unknown != file.users["b"] {
		t.Errorf("%d users, %v", file.Users(), file.unknown)
	}
	if empty, err := Parse(nil); err != nil || empty.Check([]byte("a"), nil) {
		t.Error("an empty file has a user")
	}
	if file.Check([]byte("a"), []byte(strings.Repeat("x", mostPassword+1))) {
		t.Error("a password of any length is hashed")
	}
}

// No file makes Parse panic, and no file that it accepts makes Check panic.
func FuzzParse(f *testing.F) {
	f.Add("ada:$apr1$abCD12./$w2i/ZlUs/Y/yLJi5Hxd3v/\n# x\n\r\n")
	f.Add("ada:$5$rounds=1000$short$Dvn1K7VcLNC1xboNjai.hqyHxPl6O0m46vESuLJFFm9")
	f.Add("ada:$2y$04$wrrfvOjx7eWJUbSVwLFUPuW5wMnXpFOxPwQqTUZ5C5U1GvKCOkFmG")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Parse([]byte(text))
		if err != nil || file.unknown == nil || file.unknown.cost() > 10_000 {
			return
		}
		file.Check([]byte("ada"), []byte("secret"))
	})
}

// What slappasswd and openssl passwd wrote, and what nginx accepts besides.
func TestParseSome(t *testing.T) {
	f, errs := ParseSome([]byte("# users\n\nssha:{SSHA}yI6cZwQadOA1e+/f+T+H3eCQQhRzYWx0\nplain:{PLAIN}a b\nmd5:$1$abCD12./$8TnYaBD7F5w3wyeCQWoZu.\n" +
		"two:{PLAIN}first\ntwo:{PLAIN}second\nmore:{PLAIN}x:comment\ndes:abJnggxhB/yWI\ndes:{PLAIN}later\nno colon\n:{PLAIN}x\nhigh:$2y$20$" + strings.Repeat("a", 53)))
	for user, passwords := range map[string]map[string]bool{
		"ssha": {"password": true, "passwor": false, "": false}, "plain": {"a b": true, "a": false, "{PLAIN}a b": false},
		"md5": {"secret": true, "Secret": false}, "two": {"first": true, "second": false}, "more": {"x": true, "x:comment": false},
		"des": {"secret": false, "later": false, "": false}, "high": {"": false}, "nobody": {"": false}, "": {"x": false},
	} {
		for password, want := range passwords {
			if got := f.Check([]byte(user), []byte(password)); got != want {
				t.Errorf("%q %q: %t", user, password, got)
			}
		}
	}
	if len(errs) != 4 || !strings.Contains(errs[0].Error(), `line 9: user "des": the password has no hash that weir knows`) {
		t.Errorf("the errors are %v", errs)
	}
	if _, errs := ParseSome([]byte("a:{SSHA}W6ph5M==\nb:$1$a$b")); len(errs) != 2 {
		t.Errorf("the errors are %v", errs)
	}
}

// counted is a hash that counts its checks.
type counted struct{ checks int }

func (c *counted) matches([]byte) bool { c.checks++; return true }
func (c *counted) cost() int           { return 1 }

// Each check computes one hash, also for an unknown user. So an attacker cannot find the users of a file by
// measuring the time.
func TestEachCheckTakesOneHash(t *testing.T) {
	ada, unknown := new(counted), new(counted)
	file := &File{users: map[string]hash{"ada": ada}, unknown: unknown}
	if !file.Check([]byte("ada"), []byte("x")) || ada.checks != 1 || unknown.checks != 0 {
		t.Errorf("a user of the file takes %d and %d hashes", ada.checks, unknown.checks)
	}
	if file.Check([]byte("eve"), []byte("x")) || ada.checks != 1 || unknown.checks != 1 {
		t.Errorf("an unknown user takes %d and %d hashes", ada.checks-1, unknown.checks)
	}
}
