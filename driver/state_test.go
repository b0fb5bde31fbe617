package driver

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

type pool struct{ Size int }

// Records outlive the process, in a file and in a ConfigMap.
func TestRecords(t *testing.T) {
	api := kubeapi.New(t, kubeapi.ConfigMaps())
	for name, flags := range map[string][]string{
		"file":      nil,
		"ConfigMap": {"--acme-state=configmap:cleat-system/state", "--acme-kubeconfig=" + api.Kubeconfig(t)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, dir := t.Context(), t.TempDir()
			open := func() (*Process, Records[pool]) {
				p, f := stateOf(t, append(flags, "--state-dir="+dir)...)
				return p, Records[pool]{testkit.Value(p.OpenState(ctx, f))(t), "pools"}
			}
			p, r := open()
			testkit.Must(t, r.State.Spare(ctx), r.Put(ctx, "a", pool{1}), r.Put(ctx, "b", pool{2}), r.Put(ctx, "c", pool{3}), r.Delete(ctx, "b"), r.Delete(ctx, "x"))
			testkit.Must(t, r.Change(ctx, "c", func(now pool, found bool) (pool, bool, error) {
				return pool{now.Size + 1}, found, nil
			}))
			if err := r.Change(ctx, "c", func(pool, bool) (pool, bool, error) { return pool{9}, true, io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the error of decide: %v", err)
			}
			testkit.Must(t, p.Close(context.Background()))

			p, r = open()
			t.Cleanup(func() { testkit.Must(t, p.Close(context.Background())) })
			if diff := cmp.Diff(map[string]pool{"a": {1}, "c": {4}}, testkit.Value(r.All(ctx))(t)); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
			if got, found, err := r.Get(ctx, "c"); err != nil || !found || got.Size != 4 {
				t.Errorf("c is %v, %t, %v", got, found, err)
			}
			if _, found, err := r.Get(ctx, "b"); err != nil || found {
				t.Errorf("the deleted record: %t, %v", found, err)
			}
			other := Records[pool]{r.State, "others"}
			if all := testkit.Value(other.All(ctx))(t); len(all) > 0 {
				t.Errorf("records of another name: %v", all)
			}
			testkit.Value(p.UseState(ctx, r.State))(t) // beside grants and fences
			if name == "file" {
				return
			}
			testkit.Go(t, p.driver.runBackground)
			testkit.Eventually(t, "the ConfigMap is watched", func() bool { return api.Count("watch") > 0 })
		})
	}
}

func stateOf(t *testing.T, args ...string) (*Process, *StateFlags) {
	t.Helper()
	f := &StateFlags{Prefix: "acme-"}
	e := acme(new(int))
	e.Flags = func(fs *pflag.FlagSet) { f.AddFlags(fs) }
	return testkit.Value(programOf(e).Parse(append(args, "--node-id=n")...))(t), f
}

func TestStateFlagsThatAreRefused(t *testing.T) {
	for args, want := range map[string]string{
		"--acme-state=configmap:state":        "configmap:NAMESPACE/NAME",
		"--acme-state=configmap:a/b/c":        "configmap:NAMESPACE/NAME",
		"--acme-state=secret:a/b":             "configmap:NAMESPACE/NAME",
		"--acme-kubeconfig=/k":                "--acme-state names none",
		"--acme-state=configmap:storage/name": "--acme-state", // outside of a cluster
	} {
		p, f := stateOf(t, args, "--state-dir="+t.TempDir())
		_, err := p.OpenState(t.Context(), f)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
		if isForm := strings.Contains(want, "NAMESPACE"); isForm != (f.Check() != nil) {
			t.Errorf("%s: Check: %v", args, f.Check())
		}
	}
}

type foreignState struct{}

func (foreignState) Spare(context.Context) error { return nil }

// A State of another package has no transactions.
func TestForeignStateIsRefused(t *testing.T) {
	p, _ := stateOf(t)
	r := Records[pool]{foreignState{}, "pools"}
	_, _, get := r.Get(t.Context(), "a")
	for what, err := range map[string]error{
		"UseState": testkit.Err(p.UseState(t.Context(), foreignState{})), "Get": get,
		"All": testkit.Err(r.All(t.Context())), "Put": r.Put(t.Context(), "a", pool{}),
	} {
		testkit.WantError(t, what, err, errs.Internal, "not opened by package driver")
	}
}

// A file outside of a process is that of one, for tests of engines.
func TestOpenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "controller.db")
	state, closeFile, err := OpenFile(t.Context(), path)
	testkit.Must(t, err)
	testkit.Must(t, Records[pool]{state, "pools"}.Put(t.Context(), "a", pool{1}), closeFile())
	p, f := stateOf(t, "--state-dir="+filepath.Dir(path))
	defer func() { testkit.Must(t, p.Close(context.Background())) }()
	r := Records[pool]{testkit.Value(p.OpenState(t.Context(), f))(t), "pools"}
	if got, found, err := r.Get(t.Context(), "a"); err != nil || !found || got.Size != 1 {
		t.Errorf("a is %v, %t, %v", got, found, err)
	}
	if _, _, err := OpenFile(t.Context(), filepath.Join(t.TempDir(), "missing", "state.db")); err == nil {
		t.Error("opened a file in a directory that does not exist")
	}
}
