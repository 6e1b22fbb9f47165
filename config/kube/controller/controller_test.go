package controller

import (
	"crypto/tls"
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/annotation"
)

var update = flag.Bool("update", false, "write the tables of keys and flags into docs/migrate-ingress-nginx.md")

// names are the lines of a file in testdata that are no comments.
func names(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	return all
}

// The tables have every key and every flag of ingress-nginx, and no others.
func TestEveryKey(t *testing.T) {
	for file, table := range map[string]map[string]*key{"keys.txt": keys, "flags.txt": flags} {
		all := map[string]bool{}
		for _, name := range names(t, file) {
			all[name] = true
			if table[name] == nil {
				t.Errorf("%s has %s, and the table does not", file, name)
			}
		}
		for name := range table {
			if !all[name] {
				t.Errorf("the table has %s, and %s does not", name, file)
			}
		}
	}
}

func TestRead(t *testing.T) {
	hour := 3600 * time.Second
	f := func(data map[string]string, want Settings) {
		t.Helper()
		got := Read(data)
		got.defaults, got.auth, got.keys = nil, nil, nil
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%v became %+v, want %+v", data, *got, want)
		}
	}
	year := &config.HSTS{MaxAge: 8760 * hour, IncludeSubdomains: true}
	f(nil, Settings{HSTS: year, RedirectStatus: 308})
	f(map[string]string{"hsts": "false", "http-redirect-code": "302"}, Settings{RedirectStatus: 302})
	f(map[string]string{"hsts-max-age": "3600", "hsts-include-subdomains": "false", "hsts-preload": "true", "http-redirect-code": "399"},
		Settings{HSTS: &config.HSTS{MaxAge: hour, Preload: true}, RedirectStatus: 308})
	f(map[string]string{"hsts": "nonsense", "hide-headers": " Server ,, X-A"}, Settings{HSTS: year, RedirectStatus: 308, Hide: []string{"Server", "X-A"}})
	f(map[string]string{"block-user-agents": `~*chrome\/68\.0\ x,AlphaBot, "~^a b$",\~c`, "block-referers": ""}, Settings{HSTS: year, RedirectStatus: 308, Blocks: `if ($http_user_agent ~* "chrome\\/68\\.0\\ x") { return 403; }
if ($http_user_agent ~* "^AlphaBot$") { return 403; }
if ($http_user_agent ~ "^a b$") { return 403; }
if ($http_user_agent ~* "^~c$") { return 403; }
`})
	for _, list := range []string{"~*(?=a)", "hostnames", "a b", `"a`, "a;b", "~(", "~*" + strings.Repeat("a", 2000)} {
		f(map[string]string{"block-user-agents": list}, Settings{HSTS: year, RedirectStatus: 308, closes: []string{"block-user-agents"}})
		if r := Rate(map[string]string{"block-referers": list}); !r[0].Refused || r[0].Rating != annotation.No {
			t.Errorf("%s is rated %+v", list, r)
		}
	}
	f(map[string]string{"proxy-set-headers": " a/b ", "add-headers": "a/c"}, Settings{HSTS: year, RedirectStatus: 308, SetHeaders: "a/b", AddHeaders: "a/c"})
	f(map[string]string{"use-gzip": "false", "enable-brotli": "true", "proxy-add-original-uri-header": "true"}, Settings{HSTS: year, RedirectStatus: 308, Compress: true, OriginalURI: true})
	f(map[string]string{"http-snippet": "map $a $b { default 1; }"}, Settings{HSTS: year, RedirectStatus: 308})
	f(map[string]string{"http-snippet": "deny all;"}, Settings{HSTS: year, RedirectStatus: 308, closes: []string{"http-snippet"}})
	f(map[string]string{"block-cidrs": "nonsense"}, Settings{HSTS: year, RedirectStatus: 308, closes: []string{"block-cidrs"}})
	if s := Read(map[string]string{"block-cidrs": "192.0.2.1, 2001:db8::/32"}); fmt.Sprint(s.Deny) != "[192.0.2.1/32 2001:db8::/32]" || s.closes != nil {
		t.Errorf("block-cidrs became %v, and closes %v", s.Deny, s.closes)
	}
}

func TestApply(t *testing.T) {
	const global = "https://auth.example/"
	f := func(data, own, want map[string]string) {
		t.Helper()
		i := &networkingv1.Ingress{}
		i.Annotations = map[string]string{}
		for name, value := range own {
			i.Annotations[annotation.Nginx+name] = value
		}
		before := maps.Clone(i.Annotations)
		got := map[string]string{}
		for name, value := range Read(data).Apply(i).Annotations {
			if short, ok := strings.CutPrefix(name, annotation.Nginx); ok {
				got[short] = value
			}
		}
		if !maps.Equal(i.Annotations, before) {
			t.Errorf("%v changed the Ingress itself", data)
		}
		if !maps.Equal(got, want) {
			t.Errorf("%v and %v became %v, want %v", data, own, got, want)
		}
	}
	type m = map[string]string
	f(nil, nil, m{"proxy-body-size": "1m"})
	f(m{"proxy-body-size": "2m"}, m{"proxy-body-size": "3m"}, m{"proxy-body-size": "3m"})
	f(m{"proxy-body-size": "2m"}, m{"Proxy-Body-Size": "3m"}, m{"Proxy-Body-Size": "3m"})
	f(m{"whitelist-source-range": "10.0.0.0/8"}, m{"allowlist-source-range": "::/0"}, m{"proxy-body-size": "1m", "allowlist-source-range": "::/0"})
	f(m{"whitelist-source-range": "10.0.0.0/8"}, m{"whitelist-source-range": ""}, m{"proxy-body-size": "1m", "whitelist-source-range": "10.0.0.0/8"})
	f(m{"disable-access-log": "true"}, nil, m{"proxy-body-size": "1m", "enable-access-log": "false"})
	f(m{"global-auth-url": global, "global-auth-method": "POST"}, nil, m{"proxy-body-size": "1m", "auth-url": global, "auth-method": "POST"})
	f(m{"global-auth-url": global}, m{"auth-signin": "https://mine.example/"}, m{"proxy-body-size": "1m", "auth-url": global})
	f(m{"global-auth-url": global, "global-auth-method": "POST"}, m{"auth-url": "https://mine.example/"}, m{"proxy-body-size": "1m", "auth-url": "https://mine.example/"})
	f(m{"global-auth-url": global}, m{"enable-global-auth": "false"}, m{"proxy-body-size": "1m", "enable-global-auth": "false"})
	f(m{"global-auth-method": "POST"}, nil, m{"proxy-body-size": "1m"})
	f(m{"location-snippet": "deny all;"}, m{"configuration-snippet": "add_header A b;"}, m{"proxy-body-size": "1m", "configuration-snippet": "add_header A b;\ndeny all;"})
	f(m{"server-snippet": "deny all;"}, nil, m{"proxy-body-size": "1m", "server-snippet": "deny all;"})
}

// Every key and flag of trust is told, and has no effect.
func TestTrustIsNeverApplied(t *testing.T) {
	data := map[string]string{}
	for name, k := range keys {
		if k.trust {
			data[name] = "true"
		}
	}
	if len(data) < 7 {
		t.Errorf("only %d keys decide whom to trust", len(data))
	}
	if got, want := Read(data), Read(nil); !reflect.DeepEqual(got, want) {
		t.Errorf("they set %+v", got)
	}
	for _, r := range Rate(data) {
		if !r.Trust || r.Rating != annotation.No || r.Why == "" {
			t.Errorf("%s is rated %+v", r.Name, r)
		}
	}
}

func TestFlags(t *testing.T) {
	got := Flags(strings.Fields("/nginx-ingress-controller --publish-service=a/b --election-id=x --watch-ingress-without-class -v 3 --enable-ssl-passthrough --configmap $(POD_NAMESPACE)/c"))
	want := map[string]string{"publish-service": "a/b", "election-id": "x", "watch-ingress-without-class": "true", "v": "3", "enable-ssl-passthrough": "true", "configmap": "$(POD_NAMESPACE)/c"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, r := range RateFlags(map[string]string{"http-port": "80", "annotations-prefix": "a", "nonsense": "1"}) {
		if wanted := map[string]annotation.Rating{"--http-port": annotation.Exact, "--annotations-prefix": annotation.No, "--nonsense": annotation.No}[r.Name]; r.Rating != wanted {
			t.Errorf("%s is %s, want %s", r.Name, r.Rating, wanted)
		}
	}
}

func TestIsController(t *testing.T) {
	for image, want := range map[string]bool{"registry.k8s.io/ingress-nginx/controller:v1.15.1@sha256:1": true, "quay.io/kubernetes-ingress-controller/nginx-ingress-controller:0.30": true, "nginx:1.27": false} {
		if got := IsController(image, []string{"--x"}); got != want {
			t.Errorf("%s: %v", image, got)
		}
	}
	if !IsController("mirror/x", []string{"/nginx-ingress-controller"}) {
		t.Error("the command is not enough")
	}
	for name, want := range map[string]bool{"ingress-nginx-controller": true, "nginx-configuration": true, "tcp-services": false, "ingress-tcp-services": false, "app": false} {
		if got := IsConfigMap(name, map[string]string{"use-gzip": "true"}); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if IsConfigMap("nginx-conf", map[string]string{"nginx.conf": "http {}"}) {
		t.Error("the configuration of an nginx is taken for the controller's")
	}
}

const (
	begin = "<!-- Made by go test ./config/kube/controller -update: %s -->\n"
	end   = "<!-- end -->\n"
)

// TestMigrationPage checks that the tables of the migration page equal the ratings.
func TestMigrationPage(t *testing.T) {
	const path = "../../../docs/migrate-ingress-nginx.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for of, want := range map[string]string{"flags": table("flag", "--", flags), "keys": table("key", "", keys)} {
		before, rest, ok1 := strings.Cut(page, fmt.Sprintf(begin, of))
		got, after, ok2 := strings.Cut(rest, end)
		switch {
		case !ok1 || !ok2:
			t.Errorf("the page has no place for the table of %s: %q", of, fmt.Sprintf(begin, of))
		case got != want && !*update:
			t.Errorf("the table of %s is not what the ratings say; go test ./config/kube/controller -update makes it anew", of)
		default:
			page = before + fmt.Sprintf(begin, of) + want + end + after
		}
	}
	if *update && page != string(text) {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// table returns Markdown, in alphabetical order.
func table(what, dashes string, all map[string]*key) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s and value | weir | how it differs, or what to do |\n|---|---|---|\n", what)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		k := all[name]
		shown := "`" + dashes + name + "`"
		if k.snippet != "" {
			fmt.Fprintf(&b, "| %s | as the annotation | `%s` of all Ingresses |\n", shown, k.snippet)
			continue
		}
		if k.annotation != "" || k.auth != "" {
			a := k.annotation + k.auth
			rating := "as the annotation"
			if k.why != "" {
				rating = "no: 503"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", shown, rating, strings.TrimPrefix(k.why+"; `"+a+"` of Ingresses without it", "; "))
			continue
		}
		rating := string(k.rating)
		switch {
		case k.trust:
			rating = "never applied"
		case k.refuses != nil && dashes == "" && k.rating == annotation.No:
			rating = "no: 503"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", shown, rating, strings.ReplaceAll(k.why, "|", `\|`))
		if len(k.exact) > 0 && k.rating != annotation.Exact {
			fmt.Fprintf(&b, "| %s: %s | exact |  |\n", shown, strings.ReplaceAll("`"+strings.Join(k.exact, "`, `")+"`", "``", "empty"))
		}
	}
	return b.String()
}

// A value of a flag or a key adds no line to the configuration.
func TestFileHasNoLinesOfOthers(t *testing.T) {
	const hostile = "x\ninjected: {}\r\n# "
	in := Installation{Flags: map[string]string{}, Data: map[string]string{"use-proxy-protocol": "true", "use-forwarded-headers": "true"}, Classes: []string{hostile}}
	for name := range flags {
		in.Flags[name] = hostile
	}
	for name := range keys {
		if in.Data[name] == "" {
			in.Data[name] = hostile
		}
	}
	text, changes := in.File()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "injected") {
			t.Errorf("a line is %q", line)
		}
	}
	if len(changes) == 0 {
		t.Error("there is nothing to change")
	}
}

// Every suite that migrate writes is one that weir knows.
func TestSuites(t *testing.T) {
	known := map[string]bool{}
	for _, s := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
		known[s.Name] = true
	}
	for openssl, iana := range suites {
		if !known[strings.TrimSuffix(iana, "_SHA256")] && !known[iana] {
			t.Errorf("%s is %s, which Go does not know", openssl, iana)
		}
	}
}
