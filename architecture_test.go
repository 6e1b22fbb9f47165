package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/weirproxy/weir/"

// file is one Go file of the module, for any system.
type file struct {
	path   string // path from the root, with slashes
	folder string // folder of the package; "." is the root
	test   bool
	*ast.File
}

// source is every Go file of the module. The test parses the files itself, because `go
// list` omits the files of other systems.
var source = sync.OnceValues(func() ([]file, error) {
	var files []file
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (d.Name()[0] == '.' || d.Name() == "testdata" || isModule(name)):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(name) != ".go":
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		name = filepath.ToSlash(name)
		files = append(files, file{name, path.Dir(name), strings.HasSuffix(name, "_test.go"), parsed})
		return err
	})
	return files, err
})

// isModule reports whether a folder is a module of its own.
func isModule(folder string) bool {
	_, err := os.Stat(filepath.Join(folder, "go.mod"))
	return err == nil
}

// goFiles returns the files of the module, without its tests and the tools of e2e.
func goFiles(t *testing.T) (files []file) {
	t.Helper()
	all, err := source()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if !f.test && f.folder != "e2e" && !strings.HasPrefix(f.folder, "e2e/") {
			files = append(files, f)
		}
	}
	return files
}

// The tiers of the house; see docs/architecture.md. A package imports only packages of lower tiers. A new
// package needs an entry here and in that document.
const (
	bottom = iota // imports nothing of weir
	leaf
	part
	backends
	dataPath
	process
	command
)

var tiers = map[string]int{
	"pause": bottom, "overlay": bottom, "disk": bottom, "config": leaf, "listener/header": leaf, "listener/park": leaf, "listener/memory": leaf, "listener/sockets": leaf, "listener/conn": leaf, "tls/hello": leaf, "proxy/message": leaf, "proxy/expression": leaf, "proxy/ratelimit": leaf, "proxy/script": leaf, "proxy/htpasswd": leaf, "proxy/jwt": leaf, "proxy/compress": leaf, "proxy/tally": leaf, "proxy/extauthz": leaf,
	"tls/storage": leaf, "config/kube/api": leaf, "config/kube/api/fake": leaf, "config/kube/annotation": leaf, "config/kube/event": leaf,

	"config/file": part, "listener": part, "listener/pressure": part, "tls/acme": part, "tls/certs": part, "tls/policy": part, "health": part, "proxy/http1": part, "proxy/http2": part, "proxy/http2/core": part, "proxy/accesslog": part, "proxy/tunnel": part, "proxy/filter": part, "proxy/route": part,
	"config/kube/claim": part, "config/kube/informer": part, "config/kube/lint": part, "config/kube/controller": part, "config/kube/gateway": part,

	"proxy/backend": backends, "proxy/trace": backends, "config/kube": backends, "config/kube/control": backends,

	"proxy": dataPath,

	"cmd/weir/node/status": part,

	"soak": part, "soak/command": backends, "probe": part, // tools, which import only listener/header of weir

	"cmd/weir/node": process,

	"cmd/weir": command, "cmd/weir-soak": command,

	"proxy/http2/http2test": command, // only for tests: no package imports it

	".": leaf, "e2e": leaf, "e2e/bench": part, "e2e/soak": leaf, "e2e/kube": leaf, "e2e/freeport": leaf, "e2e/compatibility": leaf, "e2e/compare": part, // these test weir from outside
}

// withinATier are the allowed imports within one tier, with their reasons.
var withinATier = map[[2]string]string{
	{"listener/conn", "listener/header"}:           "a Conn carries what its header said",
	{"listener/conn", "listener/park"}:             "a Conn waits there for its first bytes",
	{"listener/memory", "listener/conn"}:           "the account is shared out by the levels of client networks",
	{"config", "proxy/message"}:                    "drop_headers and keep_headers are judged by the names that the data path knows",
	{"proxy/compress", "proxy/message"}:            "Accept-Encoding is read by the grammar of the data path",
	{"config", "proxy/expression"}:                 "the expressions of routes are checked by the limits of the data path",
	{"config", "proxy/htpasswd"}:                   "files of users are checked by the parser of the data path",
	{"config", "proxy/jwt"}:                        "keys of tokens are checked by the parser of the data path",
	{"config/kube/annotation", "proxy/expression"}: "paths with use-regex are rated by the limits of the data path",
	{"config/kube/annotation", "proxy/script"}:     "snippets are rated by the parser of the data path",
	{"config", "proxy/script"}:                     "snippets of objects are checked by the parser of the data path",
	{"proxy/script", "proxy/message"}:              "snippets set no headers that the data path sets",
	{"proxy/script", "proxy/expression"}:           "expressions of snippets are checked by the limits of the data path",
	{"tls/storage", "config/kube/api"}:             "a storage may be the Secrets of a cluster",
	{"proxy/http2", "proxy/http2/core"}:            "a driver connects a core with a socket",
}

func TestImportsRunOneWay(t *testing.T) {
	f := func(from, to string) {
		t.Helper()
		mine, known := tiers[from]
		theirs, knownToo := tiers[to]
		switch {
		case !known:
			t.Errorf("%s has no place in the house: enter it in docs/architecture.md and in this test", from)
		case !knownToo && to != "":
			t.Errorf("%s imports %s, which has no place in the house", from, to)
		case to != "" && mine <= theirs && withinATier[[2]string{from, to}] == "":
			t.Errorf("%s imports %s: imports run from higher tiers to lower ones; declare an interface in %s, or take a function, and let cmd/weir/node join them", from, to, from)
		}
	}
	all, err := source()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.test { // tests may import more
			continue
		}
		f(one.folder, "")
		for _, i := range imports(one) {
			if to, ours := strings.CutPrefix(i, module); ours {
				f(one.folder, to)
			}
		}
	}
}

func imports(f file) (paths []string) {
	for _, i := range f.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		paths = append(paths, p)
	}
	return paths
}

// mayServeHTTP are the packages that may use net/http: ports for operators and load balancers, requests about
// certificates (may one be issued, is one revoked), requests to API servers, the tools, and peers in tests. None of them carries the
// traffic of clients.
var mayServeHTTP = []string{"cmd/weir", "cmd/weir/node", "cmd/weir/node/status", "soak", "health", "tls/acme", "tls/certs", "config/kube/api", "config/kube/api/fake", "proxy/http2/http2test"}

// mayLog are the packages that may import the logger. cmd/weir/node writes the log. tls/acme passes a logger
// to certmagic. tls/storage may lose a lock when no caller can receive an error.
var mayLog = []string{"cmd/weir/node", "tls/acme", "tls/storage"}

func TestNetHTTPIsNotOnTheDataPath(t *testing.T) {
	for _, f := range goFiles(t) {
		for _, i := range imports(f) {
			switch {
			case i == "net/http/httputil":
				t.Errorf("%s imports %s: requests go through proxy/http1", f.path, i)
			case strings.HasPrefix(i, "go.uber.org/zap") && !slices.Contains(mayLog, f.folder):
				t.Errorf("%s imports %s: errors are returned, and logged at the edge", f.path, i)
			case i == "net/http" && !slices.Contains(mayServeHTTP, f.folder):
				onlyStatusCodes(t, f)
			}
		}
	}
}

// onlyStatusCodes checks which names of net/http f uses.
func onlyStatusCodes(t *testing.T, f file) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "http" && !strings.HasPrefix(s.Sel.Name, "Status") {
				t.Errorf("%s uses http.%s: on the data path net/http is good for the names of status codes alone", f.path, s.Sel.Name)
			}
		}
		return true
	})
}

// The model of the configuration is independent of the format of the file: objects of a
// cluster become the same values.
func TestConfigKnowsNoYAML(t *testing.T) {
	readers := 0
	for _, f := range goFiles(t) {
		for _, i := range imports(f) {
			switch {
			case !strings.Contains(i, "yaml"):
			case f.folder == "config":
				t.Errorf("%s imports %s: the format of the file is for config/file", f.path, i)
			case f.folder == "config/file":
				readers++
			}
		}
	}
	if readers == 0 {
		t.Error("no file in config/file imports YAML")
	}
}

// coreUses are packages with I/O, goroutines or clocks. The core of HTTP/2 may use only these names of them.
var coreUses = map[string][]string{
	"time":                         {"Time", "Duration", "Second"},
	"sync":                         {"Pool"},
	module + "listener/conn":       {"Buffer", "BufferSize", "GetBuffer", "PutBuffer"},
	module + "listener/memory":     {"Account", "Exchange"},
	"net/http":                     {"StatusText", "StatusOK", "StatusSwitchingProtocols"},
	"math/rand/v2":                 {"Uint64"},
	"golang.org/x/net/http2/hpack": {"Decoder", "NewDecoder", "HeaderField", "ErrStringLength"},
}

// coreImports are the packages without I/O, goroutines and clocks that the core may import.
var coreImports = []string{"bytes", "crypto/sha1", "encoding/base64", "encoding/binary", "errors", "iter", "slices", "sort", "unsafe",
	module + "proxy/message"}

// The core of HTTP/2 contains only the protocol. Its drivers wait, read and write.
func TestCoreOfHTTP2HasNoIO(t *testing.T) {
	found := false
	for _, f := range goFiles(t) {
		if f.folder != "proxy/http2/core" {
			continue
		}
		found = true
		names := map[string]string{} // of the packages in coreUses
		for _, i := range imports(f) {
			if _, some := coreUses[i]; some {
				name := path.Base(i)
				if name == "v2" {
					name = path.Base(path.Dir(i))
				}
				names[name] = i
			} else if !slices.Contains(coreImports, i) {
				t.Errorf("%s imports %s: I/O, goroutines and clocks are for the drivers in proxy/http2", f.path, i)
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine: that is for the drivers in proxy/http2", f.path)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && names[x.Name] != "" && !slices.Contains(coreUses[names[x.Name]], n.Sel.Name) {
					t.Errorf("%s uses %s.%s: I/O, goroutines and clocks are for the drivers in proxy/http2", f.path, x.Name, n.Sel.Name)
				}
			}
			return true
		})
	}
	if !found {
		t.Error("there are no files")
	}
}

// listens are the names in packages that open a listening socket, or make a listener of a
// descriptor.
var listens = map[string]*regexp.Regexp{
	"net":                   regexp.MustCompile(`^(Listen|ListenConfig|ListenPacket|Listen(TCP|UDP|IP|Unix|Unixgram|MulticastUDP)|FileListener|FilePacketConn)$`),
	"net/http":              regexp.MustCompile(`^ListenAndServe`),
	"net/http/httptest":     regexp.MustCompile(`^New.*Server$`),
	"crypto/tls":            regexp.MustCompile(`^Listen$`),
	"syscall":               regexp.MustCompile(`^(Bind|Listen)$`),
	"golang.org/x/sys/unix": regexp.MustCompile(`^(Bind|Listen)$`),
}

// mayListen are the packages that may use these names, with their reasons.
var mayListen = map[string]string{
	"listener/sockets":      "it opens the sockets of all others",
	"config/kube/api/fake":  "a server for tests",
	"proxy/http2/http2test": "a server for tests",
}

// If another package opened sockets, a reload, a successor process and the check of endpoints would not know
// them. That check prevents authors of objects from reaching weir's own ports.
func TestOnlySocketsListens(t *testing.T) {
	found := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, name := range listening(f) {
			found[f.folder] = true
			if mayListen[f.folder] == "" {
				t.Errorf("%s uses %s: sockets come from listener/sockets", f.path, name)
			}
		}
	}
	for folder := range mayListen {
		if !found[folder] {
			t.Errorf("%s does not listen: take it from the exceptions", folder)
		}
	}
}

// listening returns the names that f uses to listen. Methods named ListenAndServe count for every type.
func listening(f file) (names []string) {
	return using(f, func(from, name string) bool {
		l := listens[from]
		return l != nil && l.MatchString(name) || strings.HasPrefix(name, "ListenAndServe")
	})
}

// using returns the names of other packages that f uses and that wanted selects, such as "os.ReadFile". For a
// method, from is empty.
func using(f file, wanted func(from, name string) bool) (names []string) {
	paths := map[string]string{} // the key is the name of the package in f
	for _, i := range f.Imports {
		to, _ := strconv.Unquote(i.Path.Value)
		paths[path.Base(to)] = to
		if i.Name != nil {
			paths[i.Name.Name] = to
		}
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		from := ""
		if x, ok := s.X.(*ast.Ident); ok {
			from = paths[x.Name]
		}
		if wanted(from, s.Sel.Name) {
			names = append(names, path.Join(from, s.Sel.Name))
		}
		return true
	})
	return names
}

func TestPackagesHaveComments(t *testing.T) {
	all, err := source()
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, f := range all {
		if !f.test {
			has[f.folder] = has[f.folder] || f.Doc != nil
		}
	}
	for folder, commented := range has {
		if !commented {
			t.Errorf("no file of the package in %s says what the package is for", folder)
		}
	}
}

// avoided are the words in place of which docs/architecture.md has other words.
var avoided = []string{"entrypoint", "frontend", "bind", "router", "rule", "vhost",
	"upstream", "service", "cluster", "pool", "server", "target", "member"}

// unavoidable are exported names that contain such a word with another meaning.
var unavoidable = map[string]string{
	"config.HeaderRule":            "a rule of a PROXY header policy: the configuration's word",
	"config.Rules":                 "those rules",
	"config.Server":                "a name server, as DNS calls it",
	"config.Service":               "what a check of gRPC asks for, in gRPC's words",
	"config/kube.Services":         "Kubernetes calls the objects so",
	"config/kube/gateway.Service":  "the same",
	"config.Services":              "the key for Services of Gateways, in Kubernetes' word",
	"config.GatewayService":        "the key for them too",
	"config.KeepsServices":         "those Services",
	"config.ServiceType":           "their type, in Kubernetes' words",
	"config.ServiceLoadBalancer":   "the same",
	"config.ServiceNodePort":       "the same",
	"config.ServiceClusterIP":      "the same",
	"config.Pool":                  "the key for addresses that are given to Gateways",
	"config/kube/gateway.FromPool": "the same",
	"config.ServerName":            "TLS calls the SNI so",
	"config.ClientAuthPool":        "an x509.CertPool in PEM",
	"health.Service":               "the key in the answer of kube-proxy that the health port has the shape of",
	"health.ServiceProxyHealthy":   "the same",
	"health.Target":                "what a check aims at: health knows no endpoints",
	"proxy/http1.Server":           "one of the two roles of the codec, RFC 9110's word",
	"proxy/http2/core.Server":      "the same",
	"config.RawTargets":            "the request target of RFC 9112",
	"proxy/http1.RawTargets":       "the same",
	"proxy/http2/core.RawTargets":  "the same",
	"proxy/message.RawTargets":     "the same",
	"proxy/message.CheckTarget":    "the same",
	"proxy/message.Target":         "the request target of RFC 9112",
	"proxy/message.EndpointTarget": "the same",
	"proxy/message.SetTarget":      "the same",
	"proxy/message.ValidTarget":    "the same",
	"proxy/message.ErrTarget":      "the same",
	"proxy/message.ErrTargetBytes": "the same",
	"soak.Target":                  "what a load is aimed at: the word of load tools",
	"soak.Targets":                 "the same",
	"tls/hello.ServerName":         "TLS calls the SNI so",
	"tls/policy.Server":            "the role of a tls.Config",
}

var nameParts = regexp.MustCompile(`[A-Z]+[a-z0-9]*|[a-z0-9]+`)

func TestExportedNamesUseTheWords(t *testing.T) {
	used := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, name := range exported(f) {
			for _, word := range nameParts.FindAllString(name, -1) {
				word = strings.ToLower(word)
				if !slices.Contains(avoided, word) && !slices.Contains(avoided, strings.TrimSuffix(word, "s")) {
					continue
				}
				full := f.folder + "." + name
				used[full] = true
				if unavoidable[full] == "" {
					t.Errorf("%s exports %s: %q is a word to avoid, see docs/architecture.md", f.path, name, word)
				}
			}
		}
	}
	for full := range unavoidable {
		if !used[full] {
			t.Errorf("nothing is called %s any more: take it from the exceptions", full)
		}
	}
}

// exported lists the names that f exports: functions, methods, types, fields, values.
func exported(f file) (names []string) {
	add := func(all ...*ast.Ident) {
		for _, i := range all {
			if i != nil && i.IsExported() {
				names = append(names, i.Name)
			}
		}
	}
	ast.Inspect(f.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
			return false
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.Field:
			add(n.Names...)
		case *ast.ValueSpec:
			add(n.Names...)
		}
		return true
	})
	return names
}

// CI does no random fuzzing: .ci/run runs only the seeds of each fuzz target.
func TestFuzzTargetsHaveSeeds(t *testing.T) {
	all, err := source()
	if err != nil {
		t.Fatal(err)
	}
	targets := 0
	for _, f := range all {
		for _, d := range f.Decls {
			fun, ok := d.(*ast.FuncDecl)
			if !ok || !f.test || !strings.HasPrefix(fun.Name.Name, "Fuzz") {
				continue
			}
			targets++
			files, _ := filepath.Glob(filepath.Join(f.folder, "testdata", "fuzz", fun.Name.Name, "*"))
			if len(files) == 0 && !addsSeeds(fun) {
				t.Errorf("%s: %s has no seeds: neither f.Add nor files in testdata/fuzz", f.path, fun.Name.Name)
			}
		}
	}
	if targets < 20 {
		t.Errorf("only %d fuzz targets were found", targets)
	}
}

// addsSeeds returns true if a fuzz target calls f.Add, or passes f to another function,
// which may call it.
func addsSeeds(target *ast.FuncDecl) (does bool) {
	isF := func(e ast.Expr) bool {
		name, ok := e.(*ast.Ident)
		return ok && name.Name == target.Type.Params.List[0].Names[0].Name
	}
	ast.Inspect(target.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			fun, isMethod := call.Fun.(*ast.SelectorExpr)
			does = does || isMethod && isF(fun.X) && fun.Sel.Name == "Add" || slices.ContainsFunc(call.Args, isF)
		}
		return true
	})
	return does
}

// The section "The house" of docs/architecture.md has the tree of folders, the list of imports and
// the table of exceptions that this test has.
func TestHouseIsDescribed(t *testing.T) {
	text, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, house, _ := strings.Cut(string(text), "\n## The house\n")
	house, _, _ = strings.Cut(house, "\n## ")
	blocks := strings.Split(house, "```")
	if len(blocks) != 5 {
		t.Fatalf("the section has %d parts, not the tree and the list of imports", len(blocks))
	}

	drawn := make(map[string]bool)
	var parent string
	for line := range strings.Lines(blocks[1]) {
		name, _, isFolder := strings.Cut(strings.TrimLeft(line, " "), "/ ")
		switch indent := len(line) - len(strings.TrimLeft(line, " ")); {
		case !isFolder || indent > 2: // the rest of a description
		case indent == 0:
			parent = name
			drawn[name] = true
		default:
			drawn[parent+"/"+name] = true
		}
	}
	tierOfLine := make(map[string]int)
	for i, line := range strings.Split(strings.TrimSpace(blocks[3]), "\n") {
		for name := range strings.SplitSeq(line, ", ") {
			tierOfLine[name] = i
		}
	}
	for name, tier := range tiers {
		if name == "." || name == "e2e" || strings.HasPrefix(name, "e2e/") || strings.HasSuffix(name, "test") || strings.HasSuffix(name, "/fake") {
			continue // only for tests
		}
		if !drawn[name] {
			t.Errorf("the tree of folders lacks %s", name)
		}
		if line, found := tierOfLine[name]; !found || line != tier {
			t.Errorf("the list of imports has %s in line %d (found: %t), not in line %d", name, line, found, tier)
		}
	}
	for name := range tierOfLine {
		if _, known := tiers[name]; !known {
			t.Errorf("the list of imports has %s, which is no package", name)
		}
	}

	exceptions := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\|").FindAllStringSubmatch(blocks[4], -1)
	described := make(map[[2]string]bool)
	for _, e := range exceptions {
		described[[2]string{e[1], e[2]}] = true
		if withinATier[[2]string{e[1], e[2]}] == "" {
			t.Errorf("the document allows %s to import %s, and TestImportsRunOneWay does not", e[1], e[2])
		}
	}
	for e := range withinATier {
		if !described[e] {
			t.Errorf("the table of exceptions lacks %s, which imports %s", e[0], e[1])
		}
	}
}
