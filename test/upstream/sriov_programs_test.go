package upstream

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs are the built programs, each built once on first use.
var programs struct {
	mu    sync.Mutex
	dir   string
	built map[string]error
}

// program builds a program with these arguments of go build, in a directory,
// with further environment variables.
func program(t testing.TB, name, directory string, env []string, words ...string) string {
	t.Helper()
	p := &programs
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		var err error
		if p.dir, err = os.MkdirTemp("", "cleat-upstream"); err != nil {
			t.Fatal(err)
		}
		p.built = map[string]error{}
	}
	path := filepath.Join(p.dir, name)
	err, known := p.built[name]
	if !known {
		cmd := exec.Command("go", append([]string{"build", "-ldflags=-s -w", "-o", path}, words...)...)
		cmd.Dir, cmd.Env = directory, append(os.Environ(), env...)
		var out []byte
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Logf("%s", out)
		}
		p.built[name] = err
	}
	if err != nil {
		t.Fatalf("go build of %s: %v", name, err)
	}
	return path
}

// removePrograms removes the built programs, 70 MB each.
func removePrograms() {
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
	}
}

func devicesProgram(t testing.TB) string {
	t.Helper()
	return program(t, "devices", "", nil, "./kubelet/devices")
}

func cleatProgram(t testing.TB) string {
	t.Helper()
	return program(t, "cleat", filepath.Join("..", ".."), []string{"CGO_ENABLED=0"}, "./cmd/cleat")
}
