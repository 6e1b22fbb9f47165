package weir_test

import (
	"slices"
	"testing"
)

// decodesJSON are the files that may use json.NewDecoder, which does not notice what is behind a value, with
// their reasons.
var decodesJSON = map[string]string{
	"proxy/jwt/token.go":      "it has checked the whole text before",
	"config/kube/manifest.go": "a text may have several values, and it reads to the end",
	"soak/workers.go":         "a stream of results from a process of the same run",
}

func TestJSONIsReadToItsEnd(t *testing.T) {
	allow(t, decodesJSON, "read the whole text and use json.Unmarshal, which refuses anything behind the value",
		"encoding/json/NewDecoder")
}

// allow checks that only the files in may use the names.
func allow(t *testing.T, may map[string]string, instead string, names ...string) {
	t.Helper()
	found := map[string]bool{}
	for _, f := range goFiles(t) {
		for _, name := range using(f, func(from, name string) bool { return slices.Contains(names, from+"/"+name) }) {
			found[f.path] = true
			if may[f.path] == "" && f.folder != "disk" {
				t.Errorf("%s uses %s: %s", f.path, name, instead)
			}
		}
	}
	for path := range may {
		if !found[path] {
			t.Errorf("%s does not use any of %q: take it from the exceptions", path, names)
		}
	}
}

// readsFiles are the files outside of package disk that may open files to read them, with their reasons.
var readsFiles = map[string]string{
	"cmd/weir/fmt.go":                "a command of a user, who may give it a pipe",
	"cmd/weir/lint.go":               "the same",
	"cmd/weir/admin.go":              "the same",
	"soak/certificates.go":           "the same",
	"config/kube/api/api.go":         "the kubelet makes the file",
	"listener/conn/reserve.go":       "/dev/null",
	"listener/pressure/cgroup.go":    "files of the kernel",
	"listener/waiting_linux.go":      "files of the kernel",
	"cmd/weir/node/container.go":     "files of the kernel",
	"cmd/weir/node/machine_linux.go": "files of the kernel",
	"cmd/weir/node/processmemory.go": "files of the kernel",
}

func TestFilesAreReadWithADeadline(t *testing.T) {
	allow(t, readsFiles, "use disk.Read, which refuses pipes and has a deadline", "os/ReadFile", "os/Open")
}

// writesFiles are the files outside of package disk that may make, open or change files by their paths, with
// their reasons.
var writesFiles = map[string]string{
	"cmd/weir/fmt.go":              "it writes where the user's own path leads, so that links stay",
	"cmd/weir/ech.go":              "O_EXCL follows no link",
	"soak/command/command.go":      "the user of the tool names the file",
	"tls/storage/directory.go":     "a file of a random name with O_EXCL",
	"cmd/weir/node/pidfile.go":     "a file of a random name with O_EXCL",
	"config/kube/api/fake/fake.go": "a server for tests",
}

func TestFilesAreWrittenWithoutLinks(t *testing.T) {
	allow(t, writesFiles, "use disk.OpenOwn, disk.OpenFile, disk.OpenFolder or disk.Replace, which are not led to other files",
		"os/OpenFile", "os/Create", "os/WriteFile", "os/CreateTemp", "os/Truncate", "os/Chmod", "os/Chown", "os/Lchown")
}
