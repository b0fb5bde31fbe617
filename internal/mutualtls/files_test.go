package mutualtls_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// cut writes the beginning of a text to a file of its own.
func cut(t *testing.T, text []byte, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cut.key")
	if err := os.WriteFile(path, text[:n], 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
