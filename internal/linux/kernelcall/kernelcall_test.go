package kernelcall_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// withoutMain is an operation that this program does not carry out.
const withoutMain = "--operation=syncfs"

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, withoutMain) {
		kernelcall.Main()
	}
	if text := os.Getenv(workerEnv); text != "" {
		var w work
		if err := json.Unmarshal([]byte(text), &w); err == nil {
			err = w.run()
			fmt.Fprintln(os.Stderr, "the worker has ended:", err)
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// A program that does not call Main does not run its tests again.
func TestProgramWithoutMain(t *testing.T) {
	err := kernelcall.SyncFS(t.Context(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "must call kernelcall.Main first") {
		t.Errorf("%v, want an error that names kernelcall.Main", err)
	}
}
