package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/engine/local"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// Settings come from flags or the environment of cleat csi, but --delete-volumes only
// from the flag. The removal is idempotent.
func TestPoolRemove(t *testing.T) {
	dir := t.TempDir()
	pool, state := filepath.Join(dir, "pool"), filepath.Join(dir, "state")
	e := testkit.Value(local.Open(t.Context(), local.Config{Pool: pool, StateDir: state}))(t)
	defer func() { _ = e.Close(t.Context()) }()
	v := testkit.Value(e.Create(t.Context(), volume.CreateRequest{Name: "v", Content: volume.Raw, Size: volume.SizeRange{Required: 1 << 20}}))(t)
	t.Setenv("CLEAT_POOL", pool)
	t.Setenv("CLEAT_STATE_DIR", state)
	t.Setenv("CLEAT_DELETE_VOLUMES", "true")
	refused := func(want string, args ...string) {
		t.Helper()
		if out, err := cleat(t, append([]string{"pool", "remove"}, args...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %q, %v, want an error with %q", args, out, err, want)
		}
	}
	refused("stop the driver first", "--delete-volumes")
	testkit.Must(t, e.Close(t.Context()))
	refused(string(v.ID))
	refused("--delete-volumes")
	refused("pool directory is not set", "--pool", "")
	refused("more", "more")
	out, err := cleat(t, "pool", "remove", "--delete-volumes")
	if err != nil || out != "pool "+pool+" is removed\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, err = cleat(t, "pool", "remove")
	if err != nil || out != "pool not found at "+pool+"\n" {
		t.Errorf("a repeat: %q, %v", out, err)
	}
	for _, d := range []string{pool, filepath.Join(state, "local-pool.json")} {
		if _, err := os.Lstat(d); !os.IsNotExist(err) {
			t.Errorf("%s is left over: %v", d, err)
		}
	}
}

// The list has what is unknown, which is an error, and a readable engine.db is
// replaced only on request.
func TestPoolRebuild(t *testing.T) {
	pool := filepath.Join(t.TempDir(), "pool")
	e := testkit.Value(local.Open(t.Context(), local.Config{Pool: pool}))(t)
	defer func() { _ = e.Close(t.Context()) }()
	v := testkit.Value(e.Create(t.Context(), volume.CreateRequest{Name: "data", Content: volume.Raw, Size: volume.SizeRange{Required: 1 << 20}}))(t)
	testkit.Must(t, e.Close(t.Context()))
	args := []string{"pool", "rebuild", "--pool", pool, "--state-dir", t.TempDir()}
	if out, err := cleat(t, args...); err == nil || !strings.Contains(err.Error(), "--replace-readable") {
		t.Errorf("%q, %v", out, err)
	}
	testkit.Must(t, os.Remove(filepath.Join(pool, "engine.db")))
	if out, err := cleat(t, args...); err != nil || !strings.Contains(out, string(v.ID)+"   data") {
		t.Errorf("%q, %v", out, err)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(pool, "volumes", "foreign"), nil, 0o600))
	out, err := cleat(t, append(args, "--replace-readable")...)
	if err == nil || !strings.Contains(out, "volumes/foreign") || !strings.Contains(out, "engine.db.damaged-") {
		t.Errorf("%q, %v", out, err)
	}
}
