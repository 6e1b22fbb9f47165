package claim

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/weirproxy/weir/config"
	"github.com/weirproxy/weir/config/kube/event"
)

func TestOlderWins(t *testing.T) {
	check(t, false, []example{
		{"the older object gets the match, whatever its kind",
			[]string{"Wish a/young 2 h.test/x h.test/y", "Order b/old 1 h.test/x"},
			[]string{"Order b/old: h.test/x", "Wish a/young: h.test/y"},
			[]string{"Wish a/young AlreadyTaken: Path /x of h.test belongs to the older Order b/old, so this Wish does not get it;"}},
		{"of equally old ones the first by namespace, name and kind",
			[]string{"Wish b/a 1 h.test/x", "Wish a/b 1 h.test/x", "Wish a/c 1 h.test/x", "Order a/b 1 h.test/x"},
			[]string{"Order a/b: h.test/x"},
			[]string{"Wish a/b AlreadyTaken", "Wish a/c AlreadyTaken", "Wish b/a AlreadyTaken"}},
		{"an exact path and a prefix are two matches, and so are two hosts",
			[]string{"Wish a/one 1 h.test/x", "Order b/two 2 h.test=/x /x g.test/x"},
			[]string{"Wish a/one: h.test/x", "Order b/two: h.test=/x", "Order b/two: /x", "Order b/two: g.test/x"}, nil},
		{"an implicit claim gets what is left, also if it is the oldest",
			[]string{"Wish a/rest 1 h.test? g.test?", "Order b/all 2 h.test/"},
			[]string{"Order b/all: h.test/", "Wish a/rest: g.test?"}, nil},
		{"of two implicit claims the older one wins",
			[]string{"Wish a/rest 2 h.test?", "Order b/rest 1 h.test?"},
			[]string{"Order b/rest: h.test?"},
			[]string{"Wish a/rest AlreadyTaken: Path / of h.test belongs to the older Order b/rest"}},
		{"of one object the first claim wins",
			[]string{"Wish a/one 1 h.test/x h.test/x"},
			[]string{"Wish a/one: h.test/x"},
			[]string{"Wish a/one AlreadyTaken: Path /x of h.test occurs twice in this Wish"}},
	})
}

func TestHostOwnership(t *testing.T) {
	check(t, true, []example{
		{"the oldest object owns a host for its namespace",
			[]string{"Order a/old 1 h.test/", "Wish b/young 2 h.test/x g.test/x", "Wish a/younger 3 h.test/y"},
			[]string{"Order a/old: h.test/", "Wish b/young: g.test/x", "Wish a/younger: h.test/y"},
			[]string{"Wish b/young HostTaken: The host h.test belongs to the namespace a, because of its older Order old (kubernetes.host_ownership in weir's configuration), so this Wish gets no requests for it; use another host, or change the older Order."}},
		{"a wildcard owns the names below it that no older object names",
			[]string{"Wish b/first 1 x.h.test/", "Order a/wild 2 *.h.test/", "Wish b/late 3 y.h.test/ a.x.h.test/", "Wish a/own 4 z.h.test/"},
			[]string{"Wish b/first: x.h.test/", "Order a/wild: *.h.test/", "Wish b/late: a.x.h.test/", "Wish a/own: z.h.test/"},
			[]string{"Wish b/late HostTaken: The host y.h.test belongs to the namespace a, because of its older Order wild, which names *.h.test ("}},
		{"a name below a wildcard of its own namespace has an owner of its own",
			[]string{"Order a/wild 1 *.h.test/", "Wish a/own 2 z.h.test/", "Wish b/late 3 z.h.test/x"},
			[]string{"Order a/wild: *.h.test/", "Wish a/own: z.h.test/"},
			[]string{"Wish b/late HostTaken: The host z.h.test belongs to the namespace a, because of its older Wish own ("}},
		{"every host is a host like any other",
			[]string{"Order a/rest 1 ?", "Wish b/rest 2 ? h.test/"},
			[]string{"Wish b/rest: h.test/", "Order a/rest: ?"},
			[]string{"Wish b/rest HostTaken: Hosts that no Wish names belong to the namespace a, because of its older Order rest ("}},
		{"a refused path of a lost host is not reported",
			[]string{"Order a/old 1 h.test/", "Wish b/young 2 !h.test/x"},
			[]string{"Order a/old: h.test/"},
			[]string{"Wish b/young HostTaken"}},
	})
	check(t, false, []example{{"without ownership each path has its own owner",
		[]string{"Order a/old 1 h.test/", "Wish b/young 2 h.test/x"},
		[]string{"Order a/old: h.test/", "Wish b/young: h.test/x"}, nil}})
}

func TestRefused(t *testing.T) {
	check(t, false, []example{
		{"the literal prefix is closed, and what is below stays open",
			[]string{"Wish a/one 1 h.test/ !h.test/v~", "Order b/two 2 h.test/v/1"},
			[]string{"Wish a/one: h.test/", "Order b/two: h.test/v/1", "Wish a/one: h.test/v... closed"},
			[]string{"Wish a/one InvalidPath: The path \"/v[0-9]\" of h.test is an expression. Until then, paths that begin with /v answer 503."}},
		{"nothing is taken from an older object of another namespace and kind",
			[]string{"Order a/old 1 h.test/", "Wish b/young 2 !h.test/v~"},
			[]string{"Order a/old: h.test/"},
			[]string{"Wish b/young InvalidPath: The path \"/v[0-9]\" of h.test is an expression. Until then, its requests go to the older Order a/old of another namespace."}},
		{"a younger object of another namespace gets nothing of it",
			[]string{"Order a/young 2 h.test/", "Wish b/old 1 !h.test/v~"},
			[]string{"Order a/young: h.test/", "Wish b/old: h.test/v... closed"},
			[]string{"Wish b/old InvalidPath"}},
		{"an older object of the same namespace does not keep them",
			[]string{"Order a/old 1 h.test/", "Wish a/young 2 !h.test/v~"},
			[]string{"Order a/old: h.test/", "Wish a/young: h.test/v... closed"},
			[]string{"Wish a/young InvalidPath"}},
		{"the older object of another namespace keeps other spellings of a shorter path",
			[]string{"Order a/old 1 h.test/", "Wish b/mid 2 h.test/v", "Wish b/young 3 !h.test/v/x~"},
			[]string{"Order a/old: h.test/", "Wish b/mid: h.test/v", "Wish b/young: h.test/v/x..."},
			[]string{"Wish b/young InvalidPath"}},
		{"of a wildcard as well",
			[]string{"Order a/old 1 *.h.test/", "Wish b/young 2 !x.h.test/v~"},
			[]string{"Order a/old: *.h.test/"},
			[]string{"Wish b/young InvalidPath: The path \"/v[0-9]\" of x.h.test is an expression. Until then, its requests go to the older Order a/old of another namespace."}},
		{"a challenge keeps nothing",
			[]string{"Order a/old 1 h.test" + ChallengePath, "Wish b/young 2 !h.test" + ChallengePath + "/x"},
			[]string{"Order a/old: h.test" + ChallengePath, "Wish b/young: h.test" + ChallengePath + "/x closed"},
			[]string{"Wish b/young InvalidPath"}},
		{"an older implicit claim of another namespace keeps them",
			[]string{"Order a/rest 1 h.test?", "Wish b/young 2 !h.test/"},
			[]string{"Order a/rest: h.test?"},
			[]string{"Wish b/young InvalidPath: The path \"/[0-9]\" of h.test is an expression. Until then, its requests go to the older Order a/rest of another namespace."}},
		{"a younger implicit claim does not",
			[]string{"Order a/rest 3 h.test?", "Wish b/old 2 !h.test/"},
			[]string{"Wish b/old: h.test/ closed"},
			[]string{"Wish b/old InvalidPath: The path \"/[0-9]\" of h.test is an expression. Until then, every path of h.test that has no other route answers 503."}},
		{"a claim that loses its match to a refused path answers 503 too",
			[]string{"Order a/old 1 h.test/", "Wish b/refused 2 !h.test/v~", "Order c/young 3 h.test/v"},
			[]string{"Order a/old: h.test/", "Wish b/refused: h.test/v"},
			[]string{"Order c/young AlreadyTaken: Path /v of h.test belongs to the older Wish b/refused", "Wish b/refused InvalidPath: The path \"/v[0-9]\" of h.test is an expression. Until then, paths that begin with /v answer 503."}},
		{"of one object as well",
			[]string{"Wish a/one 1 !h.test/v h.test/v"},
			[]string{"Wish a/one: h.test/v closed"},
			[]string{"Wish a/one InvalidPath: Path /v of h.test is the literal prefix of \"/v[0-9]\"", "Wish a/one InvalidPath: The path"}},
		{"of one object as well, also if an older object of another namespace keeps the rest",
			[]string{"Order a/old 1 h.test/", "Wish b/one 2 !h.test/v h.test/v"},
			[]string{"Order a/old: h.test/", "Wish b/one: h.test/v"},
			[]string{"Wish b/one InvalidPath: Path /v of h.test is the literal prefix", "Wish b/one InvalidPath: The path"}},
		{"an older implicit claim does not get a match that another claim lost to a refused path",
			[]string{"Order a/rest 1 h.test?", "Wish b/refused 2 !h.test/", "Wish c/young 3 h.test/"},
			[]string{"Wish b/refused: h.test/ closed"},
			[]string{"Wish b/refused InvalidPath", "Wish c/young AlreadyTaken"}},
		{"an exact path keeps nothing below it",
			[]string{"Order a/old 1 h.test=/v", "Wish b/young 2 !h.test/v/x~"},
			[]string{"Order a/old: h.test=/v", "Wish b/young: h.test/v/x... closed"},
			[]string{"Wish b/young InvalidPath"}},
		{"another object that has exactly the prefix keeps it",
			[]string{"Order a/old 1 h.test/v", "Wish b/young 2 !h.test/v"},
			[]string{"Order a/old: h.test/v"},
			[]string{"Wish b/young InvalidPath: The path \"/v[0-9]\" of h.test is an expression."}},
	})
}

func TestKeptByFile(t *testing.T) {
	events := event.Set{}
	d := Decide([]*Owner{parse(t, "Wish a/one 1 !h.test/v")}, Options{Events: events})
	d.Granted[0].Refusal.KeptByFile = true
	d.TellRefusals()
	all := events.Sorted()
	if len(all) != 1 || !strings.HasSuffix(all[0].Message, "Until then, weir's configuration serves its requests.") {
		t.Errorf("it is told %v", all)
	}
}

// A refused path that gives its requests to another object is not a winner.
func TestWinners(t *testing.T) {
	d, _ := decide(t, false, []string{"Order a/old 1 h.test/", "Wish b/young 2 !h.test/v~ !g.test/v~"})
	for m, want := range map[Match]bool{
		{"h.test", config.Path{Value: "/"}}:  true,
		{"h.test", config.Path{Value: "/v"}}: false,
		{"g.test", config.Path{Value: "/v"}}: true,
	} {
		if got := d.Winners[m] != nil; got != want {
			t.Errorf("%s has a winner: %t", m, got)
		}
	}
}

func TestGuards(t *testing.T) {
	check(t, false, []example{
		{"all paths of the object are closed",
			[]string{"Wish a/one 1 guards h.test/x h.test=/y h.test/z~ h.test=/e~ h.test/%61%2f"},
			[]string{"Wish a/one: h.test/x closed", "Wish a/one: h.test=/y closed", "Wish a/one: h.test/z... closed", "Wish a/one: h.test/e... closed", "Wish a/one: h.test/a closed"}, nil},
		{"with text, also paths that only begin with them",
			[]string{"Wish a/one 1 text h.test/x h.test/y/"},
			[]string{"Wish a/one: h.test/x... closed", "Wish a/one: h.test/y closed"}, nil},
		{"a whole host is closed for its namespace, and its challenges stay open",
			[]string{"Order a/guard 1 ofhost h.test/x", "Wish a/one 2 h.test/ g.test/ h.test" + ChallengePath, "Wish b/other 3 h.test/y"},
			[]string{"Order a/guard: h.test/x closed", "Wish a/one: h.test/ closed", "Wish a/one: g.test/", "Wish a/one: h.test" + ChallengePath, "Wish b/other: h.test/y"},
			[]string{"Wish a/one AccessControl: Paths of h.test answer 503: the Order a/guard of this namespace restricts access to the whole host, or may,"}},
		{"a refused path on a closed host is told of as refused only",
			[]string{"Order a/guard 1 ofhost h.test/x", "Wish a/one 2 !h.test/v"},
			[]string{"Order a/guard: h.test/x closed", "Wish a/one: h.test/v closed"},
			[]string{"Wish a/one InvalidPath"}},
		{"an expression closes the paths of its namespace that it may include",
			[]string{"Order a/guard 1 guards %h.test/x~", "Wish a/one 2 h.test/x h.test/xy h.test/x/longer h.test/y", "Wish b/other 3 h.test/x/y"},
			[]string{"Wish a/one: h.test/xy closed", "Wish a/one: h.test/x/longer", "Wish a/one: h.test/y", "Wish b/other: h.test/x/y", "Order a/guard: h.test/x... closed"},
			[]string{"Order a/guard InvalidPath", "Wish a/one AccessControl: Path /xy of h.test answers 503: the Order a/guard of this namespace restricts access to \"/x[0-9]\"", "Wish a/one AlreadyTaken"}},
		{"a closed path that closes more than the winner is closed beside it, within a namespace",
			[]string{"Order a/old 1 h.test/x", "Wish a/one 2 text h.test/x", "Wish b/two 3 text h.test/x", "Wish a/plain 4 guards h.test/x"},
			[]string{"Order a/old: h.test/x", "Wish a/one: h.test/x... closed"},
			[]string{"Wish a/one AlreadyTaken", "Wish a/plain AlreadyTaken", "Wish b/two AlreadyTaken"}},
		{"a refused one is not closed beside a winner of another namespace",
			[]string{"Order b/old 1 h.test/x", "Wish a/one 2 guards !h.test/x~"},
			[]string{"Order b/old: h.test/x"},
			[]string{"Wish a/one InvalidPath"}},
		{"a refused one as well",
			[]string{"Order a/old 1 h.test/x", "Wish a/one 2 guards !h.test/x~", "Wish a/two 3 guards !h.test/x"},
			[]string{"Order a/old: h.test/x", "Wish a/one: h.test/x... closed"},
			[]string{"Wish a/one InvalidPath", "Wish a/two InvalidPath"}},
		{"the guards of the backend close its claims",
			[]string{"Wish a/one 1 h.test/x service h.test/y"},
			[]string{"Wish a/one: h.test/x closed", "Wish a/one: h.test/y"}, nil},
	})
}

// weir does not compare so many expressions with each path. It closes their host.
func TestManyPatterns(t *testing.T) {
	words := []string{"Order a/guard 1 guards"}
	for n := range maxPatterns + 1 {
		words = append(words, "%h.test/"+strings.Repeat("x", n+1))
	}
	one := "Wish a/one 2 h.test/y"
	if _, got := decide(t, false, []string{strings.Join(words, " "), one}); !strings.Contains(got, "Wish a/one: h.test/y closed") {
		t.Errorf("the host is open:\n%.200s", got)
	}
	if _, got := decide(t, false, []string{strings.Join(words[:maxPatterns], " "), one}); !strings.Contains(got, "Wish a/one: h.test/y\n") {
		t.Errorf("the host is closed:\n%.200s", got)
	}
}

// The reason of a closed path names the object that closes it.
func TestClosure(t *testing.T) {
	d, _ := decide(t, false, []string{"Order a/guard 1 ofhost g.test/", "Wish a/one 2 g.test/x h.test/x service !h.test/v h.test/y"})
	var got []string
	for _, c := range d.Granted {
		if why := c.Closure(); why != nil {
			got = append(got, why.Reason+": "+why.Why)
		} else {
			got = append(got, "")
		}
	}
	want := []string{
		"closed_by_annotation: the path is closed because weir does not support ofhost of the Order a/guard, which may restrict access",
		"closed_by_annotation: the path is closed because weir does not support ofhost of the Order a/guard, which may restrict access",
		"closed_by_annotation: the path is closed because weir does not support of-service of the Service a/one, which may restrict access",
		"",
		"closed_path: the path is closed because the path \"/v[0-9]\" of the Wish a/one is an expression",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the reasons are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TLS of one object for a host counts for the paths of all objects on that host.
func TestIsOverTLS(t *testing.T) {
	d, _ := decide(t, false, []string{"Wish a/one 1 tls:h.test h.test/ /x", "Order b/two 2 h.test/y g.test/ /y", "Order b/three 3 tls: /z"})
	got := map[string]bool{}
	for _, c := range d.Granted {
		got[granted(c)] = d.IsOverTLS(c)
	}
	if want := map[string]bool{"h.test/": true, "/x": false, "h.test/y": true, "g.test/": false, "/y": false, "/z": true}; !reflect.DeepEqual(got, want) {
		t.Errorf("over TLS are %v, want %v", got, want)
	}
}

func TestAward(t *testing.T) {
	f := func(offers, secrets string, events ...string) {
		t.Helper()
		owners := map[string]*Owner{"old": parse(t, "Order a/old 1 h.test/"), "young": parse(t, "Wish b/young 2 h.test/x")}
		set := event.Set{}
		d := Decide([]*Owner{owners["old"], owners["young"]}, Options{Events: set})
		var all []Offer
		for _, text := range strings.Fields(offers) {
			by, rest, _ := strings.Cut(text, ":")
			secret, worth, _ := strings.Cut(rest, ":")
			o := Offer{Owner: owners[by], Worth: map[string]Worth{"broken": Broken, "misfit": Misfit, "fits": Fitting}[worth]}
			if secret != "" {
				o.Secret = config.ObjectName{Namespace: o.Owner.Name.Namespace, Name: secret}
			}
			all = append(all, o)
		}
		var names, told []string
		for _, name := range d.Award("h.test", all) {
			names = append(names, cmp.Or(name.String(), "default"))
		}
		for _, e := range set.Sorted() {
			told = append(told, e.Object.Kind+": "+e.Message)
		}
		if got := strings.Join(names, " "); got != secrets {
			t.Errorf("of %s the secrets %s win, want %s", offers, got, secrets)
		}
		if !slices.EqualFunc(told, events, strings.Contains) {
			t.Errorf("for %s it is told %q, want %q", offers, told, events)
		}
	}
	f("old:a:fits", "a/a")
	f("old:a:fits old:b:fits", "a/a a/b")
	f("old:a:misfit old:b:fits", "a/b", "Order: The certificate in the Secret a/a is not valid for h.test")
	f("old:a:fits young:b:fits", "a/a", "Wish: The older Order a/old has another Secret for h.test, so weir does not use the Secret b/b for it; name the same Secret in both, or remove the host from spec.secrets.")
	f("old:a:misfit young:b:fits", "b/b", "Order: The Secret a/a has no usable certificate for h.test, so weir uses the certificate of the younger Wish b/young; use a certificate for this host, or remove the host from spec.certificates.")
	f("old:a:broken young:b:misfit", "b/b", "Order: The Secret a/a has no usable certificate", "Wish: The certificate in the Secret b/b is not valid for h.test")
	f("old::fits young:b:fits", "default", "Wish: The older Order a/old uses the default certificate for h.test, so weir does not use the Secret b/b for it; name the Secret there,")
	f("old::misfit", "default")
}

// IsOthers is about hosts for which an object wants a certificate, and for which it may
// have no path.
func TestIsOthers(t *testing.T) {
	d, _ := decide(t, true, []string{"Order a/old 1 h.test/ *.w.test/", "Wish b/young 2 h.test/ g.test/ *.w.test/", "Wish b/late 3 x.w.test/"})
	young := d.Owners[1]
	for host, want := range map[string]bool{"h.test": true, "g.test": false, "*.w.test": true, "x.w.test": true, "nobody.test": false} {
		if got := d.IsOthers(young, host); got != want {
			t.Errorf("%s belongs to others: %t, want %t", host, got, want)
		}
	}
	if !young.HasLost("h.test") || young.HasLost("g.test") || !young.HasLostAny() || d.Owners[0].HasLostAny() {
		t.Error("the lost hosts are wrong")
	}
	d, _ = decide(t, true, []string{"Order a/rest 1 ?", "Wish b/rest 2 ? g.test/"})
	for host, want := range map[string]bool{"": true, "*.nobody.test": false, "nobody": false} {
		if got := d.IsOthers(d.Owners[1], host); got != want {
			t.Errorf("of an object that lost every host, %q belongs to others: %t, want %t", host, got, want)
		}
	}
}

func TestHostOwner(t *testing.T) {
	d, _ := decide(t, true, []string{"Order a/old 1 *.w.test/", "Wish b/late 3 x.w.test/"})
	if o := d.HostOwner("q.w.test"); o == nil || o.Name.Name != "old" {
		t.Errorf("q.w.test belongs to %v", o)
	}
}

func TestWildcardOf(t *testing.T) {
	for host, want := range map[string]string{"a.h.test": "*.h.test", "*.h.test": "", "test": "", "": "", "h.test": "*.test"} {
		if got := WildcardOf(host); got != want {
			t.Errorf("the wildcard of %q is %q, want %q", host, got, want)
		}
	}
}

// Objects of different kinds with the same content get the same result.
func TestKindsAreEqual(t *testing.T) {
	lines := []string{
		"Wish a/old 1 h.test/ %h.test/e~ tls:h.test guards", "Wish b/mid 2 h.test/x !h.test/v~ h.test?", "Wish a/young 3 h.test/x h.test/ex !h.test/y",
		"Wish b/host 4 ofhost g.test/", "Wish b/last 5 g.test/x g.test?", "Wish c/late 6 h.test/ !g.test/w~ *.h.test/",
	}
	for _, ownership := range []bool{false, true} {
		_, want := decide(t, ownership, lines)
		for mask := range 1 << len(lines) {
			mixed := slices.Clone(lines)
			for n := range mixed {
				if mask&(1<<n) != 0 {
					mixed[n] = strings.Replace(mixed[n], "Wish", "Order", 1)
				}
			}
			_, got := decide(t, ownership, mixed)
			got = sorted(strings.ReplaceAll(got, "Order", "Wish")) // events are sorted by kind
			if got != sorted(want) {
				t.Fatalf("%s\nbecome\n%s\nwant\n%s", strings.Join(mixed, "\n"), got, want)
			}
		}
	}
}

func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
