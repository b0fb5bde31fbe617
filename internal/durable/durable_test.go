package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "file")
	for _, text := range []string{"a longer first text", "second"} {
		testkit.Must(t, durable.Write(path, []byte(text)))
		if got := testkit.Value(os.ReadFile(path))(t); string(got) != text {
			t.Errorf("the file has %q, want %q", got, text)
		}
		// A killed process left this.
		testkit.Must(t, os.WriteFile(path+".new", []byte("an unfinished text that is longer"), 0o600))
	}
	info := testkit.Value(os.Stat(path))(t)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	testkit.Must(t, durable.Remove(path), durable.Remove(path))
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("after Remove: %v", err)
	}
	if err := durable.Write(filepath.Join(path, "no", "directory"), nil); err == nil {
		t.Error("a directory without a parent was made")
	}
}
