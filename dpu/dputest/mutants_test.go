package dputest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cleatproject/cleat/dpu/dputest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// mutant is the reference with one rule broken, and the tests that must fail;
// CI runs the first of them.
type mutant struct {
	parts    string
	breaking breaking
}

func mutants() map[string]mutant {
	all := map[string]mutant{}
	for _, group := range []map[string]mutant{identityMutants(), createMutants(), deleteMutants(), getMutants(), listMutants(), timingMutants()} {
		for name, m := range group {
			all[name] = m
		}
	}
	return all
}

const mutantVariable = "CLEAT_DPUTEST_MUTANT"

// TestSuiteFindsMutants runs each mutant in a process, since the suite must
// fail there.
func TestSuiteFindsMutants(t *testing.T) {
	self := testkit.Value(os.Executable())(t)
	covered := map[string]bool{}
	for name, m := range mutants() {
		for _, part := range soak.Pick(1, strings.Fields(m.parts)) {
			covered[part[strings.LastIndex(part, "/")+1:]] = true
			t.Run(name+"/"+part, func(t *testing.T) {
				t.Parallel()
				run := "^TestReference$"
				if part != "NothingLeft" { // checks what the others leave
					run += "/^" + strings.ReplaceAll(part, "/", "$/^") + "$"
				}
				cmd := exec.CommandContext(t.Context(), self, "-test.run="+run, "-test.v")
				// Without GORACE the race detector waits a second per process.
				cmd.Env = append(os.Environ(), mutantVariable+"="+name, "GORACE=atexit_sleep_ms=0")
				out, err := cmd.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "--- FAIL: TestReference/"+part+" ") {
					t.Errorf("%s did not notice (%v):\n%s", part, err, out)
				}
			})
		}
	}
	for _, part := range append(dputest.DeviceParts(), "Ready", "PluginInfo", "Capabilities", "Served", "Provider", "NothingLeft") {
		if !covered[part] {
			t.Errorf("no mutant shows that %s can fail", part)
		}
	}
}

func mutated(t *testing.T, r *reference, name string) []grpc.ServerOption {
	t.Helper()
	if name == "" {
		return nil
	}
	m, known := mutants()[name]
	if !known {
		t.Fatalf("no mutant is called %q", name)
	}
	if m.breaking == nil {
		return []grpc.ServerOption{grpc.UnknownServiceHandler(unknownCalls)}
	}
	through := m.breaking(r)
	return []grpc.ServerOption{grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		return through(ctx, req, next)
	})}
}

// unknownCalls is the only fault outside the contract's calls.
func unknownCalls(_ any, s grpc.ServerStream) error {
	if err := s.RecvMsg(&emptypb.Empty{}); err != nil {
		return err
	}
	return s.SendMsg(&emptypb.Empty{})
}
