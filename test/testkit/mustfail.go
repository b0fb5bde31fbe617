package testkit

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// MustFail runs a test that must fail with an error that contains the symptom,
// such as one of a build without a durable write: a test that passes there
// proves nothing.
func MustFail(t testing.TB, symptom string, test func(testing.TB)) {
	t.Helper()
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		test(f)
	}()
	<-done
	switch all := strings.Join(f.errors, "\n"); {
	case all == "":
		t.Error("passed, although it must fail")
	case !strings.Contains(all, symptom):
		t.Errorf("failed, but not with %q: %s", symptom, all)
	default:
		t.Logf("failed, as expected: %s", symptom)
	}
}

// failing is a test that is expected to fail.
type failing struct {
	testing.TB
	mu     sync.Mutex
	errors []string
}

func (f *failing) Helper() {}

func (f *failing) Error(args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errors = append(f.errors, fmt.Sprintln(args...))
}

func (f *failing) Errorf(format string, args ...any) { f.Error(fmt.Sprintf(format, args...)) }
func (f *failing) Fatal(args ...any)                 { f.Error(args...); runtime.Goexit() }
func (f *failing) Fatalf(format string, args ...any) { f.Errorf(format, args...); runtime.Goexit() }
