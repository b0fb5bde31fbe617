package kernelcall_test

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// This test program has no TestMain that calls Main. Its child does not run the
// tests again.
func TestProgramWithoutMain(t *testing.T) {
	err := kernelcall.SyncFS(t.Context(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "must call kernelcall.Main first") {
		t.Errorf("%v, want an error that names kernelcall.Main", err)
	}
}
