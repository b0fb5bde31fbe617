package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/internal/store"
)

const (
	sharedMode = "MULTI_NODE_MULTI_WRITER/block"
	// useShared asks the test binary to run over store.Shared.
	useShared = "CLEAT_TEST_SHARED"
)

// database is the store of a test, which can be closed and opened again.
type database interface {
	store.Database
	Close() error
}

// TestOverShared runs all other tests again, over store.Shared.
func TestOverShared(t *testing.T) {
	if os.Getenv(useShared) != "" {
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.skip=^TestOverShared$|^Benchmark|^Fuzz")
	cmd.Env = append(os.Environ(), useShared+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

type sharedFile struct{ *store.Shared }

func (sharedFile) Close() error { return nil }

// fileObject is a store.Object in a file, so that tests can open it again.
type fileObject struct {
	path string
	mu   sync.Mutex
}

type fileState struct {
	Generation uint64
	Entries    map[string][]byte
}

func (o *fileObject) ReadState(context.Context) (uint64, map[string][]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, err := o.read()
	return s.Generation, s.Entries, err
}

func (o *fileObject) read() (s fileState, err error) {
	data, err := os.ReadFile(o.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fileState{Entries: map[string][]byte{}}, nil
	}
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(data, &s)
}

func (o *fileObject) WriteState(_ context.Context, expect uint64, set map[string][]byte, remove []string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, err := o.read()
	switch {
	case err != nil:
		return err
	case s.Generation != expect:
		return store.ErrChanged
	}
	s.Generation++
	for name, value := range set {
		s.Entries[name] = value
	}
	for _, name := range remove {
		delete(s.Entries, name)
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(o.path, data, 0o600)
}
