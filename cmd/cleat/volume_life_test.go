package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	testdriver "github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// user runs client commands.
type user struct {
	*testing.T
	state string
	dir   string // for targets; nothing must be left mounted below it
}

// newUser starts cleat csi on a new pool and sets its endpoint in the environment.
func newUser(t *testing.T, cleat string) *user {
	t.Helper()
	dir := t.TempDir()
	pool := filepath.Join(dir, "pool")
	testdriver.MountImage(t, pool, mkfs.XFS, 2<<30)
	t.Cleanup(func() { testdriver.Sweep(t, dir) }) // after the driver has stopped, before the pool is removed
	p := testdriver.Start(t, cleat, dir, "csi", "--pool", pool)
	t.Setenv("CLEAT_ENDPOINT", "unix://"+p.Socket)
	return &user{T: t, state: filepath.Join(dir, "client"), dir: filepath.Join(dir, "targets")}
}

func (p *user) try(args ...string) (stdout string, err error) {
	p.Helper()
	return cleat(p.T, append(args, "--state-dir", p.state)...)
}

// do runs a command that must succeed and checks its output.
func (p *user) do(says string, args ...string) string {
	p.Helper()
	out, err := p.try(args...)
	if err != nil {
		p.Fatalf("cleat %s: %v", strings.Join(args, " "), err)
	}
	if !strings.Contains(out, says) {
		p.Errorf("cleat %s says %q, want %q in it", strings.Join(args, " "), out, says)
	}
	return out
}

// refused runs a command that must fail and checks its error.
func (p *user) refused(says string, args ...string) {
	p.Helper()
	out, err := p.try(args...)
	if err == nil || !strings.Contains(err.Error(), says) {
		p.Errorf("cleat %s: %v (%q), want an error with %q", strings.Join(args, " "), err, out, says)
	}
}

func read[T any](p *user, args ...string) (document T) {
	p.Helper()
	out := p.do("", append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &document); err != nil {
		p.Fatalf("cleat %s -o json: %v in %s", strings.Join(args, " "), err, out)
	}
	return document
}

// TestVolumeLifecycle runs the client commands against a real driver.
func TestVolumeLifecycle(t *testing.T) {
	cleat := testkit.Build(t, testkit.Cleat)
	t.Run("mounted", func(t *testing.T) { testLifeOfAMountedVolume(newUser(t, cleat)) })
	t.Run("block", func(t *testing.T) { testLifeOfABlockVolume(newUser(t, cleat)) })
}

// testLifeOfAMountedVolume uses files.
func testLifeOfAMountedVolume(p *user) {
	t := p.T
	at, again := filepath.Join(p.dir, "at"), filepath.Join(p.dir, "again")
	p.do("volume data is ready", "volume", "create", "data", "--size", "320MiB", "--fs-type", "xfs", "-p", "trimInterval=0")
	p.do("volume data is ready", "volume", "create", "data", "--size", "320MiB", "--fs-type", "xfs", "-p", "trimInterval=0")
	p.do("attached at "+at, "volume", "attach", "data", at)
	p.do("attached at "+at, "volume", "attach", "data", at)
	secret := make([]byte, 1<<20)
	testkit.Value(rand.Read(secret))(t)
	testkit.Must(t, os.WriteFile(filepath.Join(at, "file"), secret, 0o600))
	p.do("BYTES", "volume", "stats", "data")
	p.do("snapshot before is ready", "volume", "snapshot", "data", "--name", "before")
	testkit.Must(t, os.Remove(filepath.Join(at, "file")))
	p.do("volume data has 400", "volume", "expand", "data", "400MiB")
	p.do("trimmed", "volume", "trim", "data")
	p.do("readAheadKiB=256", "volume", "modify", "data", "readAheadKiB=256")
	p.refused("speed", "volume", "modify", "data", "speed=high")
	p.do("volume data is healthy", "volume", "health", "data")
	p.do("the storage is healthy", "volume", "health")

	p.do("volume restored is ready", "volume", "restore", "before", "restored", "--size", "420MiB")
	p.do("attached at "+again, "volume", "attach", "restored", again, "--read-only")
	if got, err := os.ReadFile(filepath.Join(again, "file")); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("the file was not restored: %v", err)
	}
	if err := os.WriteFile(filepath.Join(again, "file"), nil, 0o600); !errors.Is(err, fs.ErrPermission) && !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a write through a read-only path: %v", err)
	}
	shown := read[client.Volume](p, "volume", "show", "data")
	if shown.Size != 400<<20 || len(shown.Targets) != 1 || shown.Targets[0].Path != at || shown.Capability.FSType != "xfs" ||
		shown.Mutable["readAheadKiB"] != "256" || len(shown.Topology) != 1 {
		t.Errorf("show: %+v", shown)
	}
	if all := read[[]client.Volume](p, "volume", "list"); len(all) != 2 || all[0].Name != "data" || all[1].Name != "restored" {
		t.Errorf("list: %+v", all)
	}
	p.refused("detach it first", "volume", "delete", "data")
	p.refused("already", "volume", "attach", "data", filepath.Join(p.dir, "third"))
	// With another state directory a volume is found by its path.
	other := &user{T: t, state: p.state + "-other", dir: p.dir}
	p.do("volume data is detached", "volume", "detach", at)
	other.do("attached at "+at, "volume", "attach", shown.ID, at, "--fs-type", "xfs")
	other.do("volume data is detached", "volume", "detach", at)
	p.do("volume restored is detached", "volume", "detach", "restored", again)
	p.do("snapshot before is deleted", "snapshot", "delete", "before")
	p.do("volume restored is deleted", "volume", "delete", "data", "restored")
	p.refused(`"data"`, "volume", "delete", "data")
	p.do("", "volume", "delete", "data", "--if-exists")
	if all := p.do("", "volume", "list", "-o", "json"); strings.TrimSpace(all) != "[]" {
		t.Errorf("left: %s", all)
	}
	testdriver.CheckNothingLeft(t, p.dir)
}

// testLifeOfABlockVolume uses a device file, changed blocks and groups.
func testLifeOfABlockVolume(p *user) {
	t := p.T
	device := filepath.Join(p.dir, "device")
	p.do("volume disk is ready", "volume", "create", "disk", "--size", "16MiB", "--block")
	p.do("volume log is ready", "volume", "clone", "disk", "log")
	p.do("attached at "+device, "volume", "attach", "disk", device, "--block")
	write := func(offset int64) {
		t.Helper()
		f, err := os.OpenFile(device, os.O_WRONLY|os.O_SYNC, 0)
		testkit.Must(t, err)
		_, err = f.WriteAt(bytes.Repeat([]byte("cleat"), 1<<18/5), offset)
		testkit.Must(t, errors.Join(err, f.Close()))
	}
	write(0)
	p.do("snapshot one is ready", "snapshot", "create", "disk", "--name", "one")
	write(8 << 20)
	p.do("snapshot two is ready", "snapshot", "create", "disk", "--name", "two")
	changed := read[blockDocument](p, "volume", "changed-blocks", "one", "two")
	if changed.Size != 16<<20 || len(changed.Ranges) != 1 || changed.Ranges[0].Offset != 8<<20 || changed.Listed != 1<<18 {
		t.Errorf("changed-blocks: %+v", changed)
	}
	p.do("2 ranges", "volume", "changed-blocks", "two")
	p.do("disk", "snapshot", "list", "--volume", "disk")
	p.do("one", "snapshot", "show", "one")
	p.refused("consistency=member", "group", "create", "both", "disk", "log")
	p.do("group both is ready: 2 snapshots", "group", "create", "both", "log", "disk", "-p", "consistency=member")
	p.do("both", "group", "list")
	g := read[client.Group](p, "group", "show", "both")
	if len(g.Snapshots) != 2 {
		t.Fatalf("group show: %+v", g)
	}
	p.do("disk", "group", "show", "both")
	p.refused("group", "snapshot", "delete", g.Snapshots[0].ID)
	p.do("member is ready: 16 MiB, block", "volume", "restore", g.Snapshots[0].ID, "member")
	p.do("member is deleted", "volume", "delete", "member")
	p.refused("block device", "volume", "trim", "disk")
	p.do("volume disk is detached", "volume", "detach", "disk")
	if _, err := os.Lstat(device); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the device file is still there: %v", err)
	}
	p.do("group both is deleted", "group", "delete", "both")
	p.do("two is deleted", "snapshot", "delete", "one", "two")
	p.do("log is deleted", "volume", "delete", "disk", "log")
}
