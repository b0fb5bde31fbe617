// Package example builds examples/engine as a storage vendor does: against a module zip
// of this tree, from a proxy, in a directory that knows nothing else of the tree.
package example

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	modulePath = "github.com/cleatproject/cleat"
	version    = "v0.1.0" // that examples/engine requires
)

// Module is a copy of examples/engine without its replace directive.
type Module struct {
	dir string
	env []string
}

// New copies the example, and publishes this tree for it.
func New(t testing.TB) Module {
	t.Helper()
	dir, root := testkit.Dir(t), testkit.Root(t)
	m := Module{dir: filepath.Join(dir, "engine")}
	testkit.Must(t, os.CopyFS(m.dir, os.DirFS(filepath.Join(root, "examples/engine"))))
	publish(t, filepath.Join(dir, "proxy"), root)
	cache := strings.TrimSpace(testkit.Run(t, "go", "env", "GOMODCACHE"))
	proxies := strings.TrimSpace(testkit.Run(t, "go", "env", "GOPROXY"))
	m.env = append(os.Environ(),
		"GOPROXY=file://"+filepath.Join(dir, "proxy")+",file://"+filepath.Join(cache, "cache/download")+","+proxies,
		"GOMODCACHE="+filepath.Join(dir, "cache"), // else this version would stay in the user's
		"GONOSUMDB="+modulePath,
		"GOFLAGS=-mod=mod -modcacherw -buildvcs=false -trimpath", // -trimpath: what is built of other modules is in the build cache
		"CGO_ENABLED=0",
	)
	m.Go(t, "mod", "edit", "-dropreplace="+modulePath)
	return m
}

// Go runs the go command in the module.
func (m Module) Go(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = m.dir, m.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Build returns the path of the program.
func (m Module) Build(t testing.TB) string {
	t.Helper()
	program := filepath.Join(m.dir, "acme-csi")
	m.Go(t, "build", "-ldflags=-s -w", "-o", program, ".")
	return program
}

// publish writes the files of a module proxy.
func publish(t testing.TB, dir, root string) {
	t.Helper()
	at := filepath.Join(dir, modulePath, "@v")
	testkit.Must(t, os.MkdirAll(at, 0o755))
	var zip bytes.Buffer
	testkit.Must(t, modzip.Create(&zip, module.Version{Path: modulePath, Version: version}, files(t, root)))
	for name, text := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": []byte(`{"Version":"` + version + `"}`),
		version + ".mod": testkit.Value(os.ReadFile(filepath.Join(root, "go.mod")))(t), version + ".zip": zip.Bytes(),
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(at, name), text, 0o644))
	}
}

// file is one of the tree, with its path in the module.
type file struct{ root, path string }

func (f file) Path() string                 { return f.path }
func (f file) Lstat() (fs.FileInfo, error)  { return os.Lstat(filepath.Join(f.root, f.path)) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(f.root, f.path)) }

// files are those of git, with changes: what is built in the tree is not published.
func files(t testing.TB, root string) (all []modzip.File) {
	t.Helper()
	names := testkit.Run(t, "git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z")
	for name := range strings.SplitSeq(strings.Trim(names, "\x00"), "\x00") {
		f := file{root, name}
		if info, err := f.Lstat(); err == nil && info.Mode().IsRegular() {
			all = append(all, f)
		}
	}
	return all
}
