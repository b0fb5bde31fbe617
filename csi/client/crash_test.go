package client_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func owner(info fs.FileInfo) (uid, gid uint32) {
	s := info.Sys().(*syscall.Stat_t)
	return s.Uid, s.Gid
}

// life runs all calls of a volume twice; it can be interrupted and restarted.
func life(ctx context.Context, d *client.Driver, target string) error {
	_, err := d.Create(ctx, client.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}})
	if err != nil {
		return err
	}
	if _, err := d.Attach(ctx, client.AttachRequest{Volume: "v", Target: target}); err != nil {
		return err
	}
	if _, err := d.Expand(ctx, "v", volume.SizeRange{Required: 2 * mib}); err != nil {
		return err
	}
	_, err = d.CreateSnapshot(ctx, "s", "v", nil)
	return err
}

// end deletes everything that still exists.
func end(ctx context.Context, d *client.Driver) error {
	gone := func(err error) error {
		if errors.Is(err, errs.Unsupported) { // deleted before: the driver cannot look it up
			return nil
		}
		return err
	}
	return errors.Join(gone(d.DeleteSnapshot(ctx, "s")), gone(d.Detach(ctx, "v", "")), gone(d.Delete(ctx, "v")))
}

// The answer of each call in turn is lost, as by a crash of the client. A new
// client with the same state directory completes the work, and deletes
// everything.
func TestInterruptedAnywhere(t *testing.T) {
	steps := []string{
		"CreateVolume", "ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "ControllerExpandVolume", "NodeExpandVolume", "CreateSnapshot",
		"DeleteSnapshot", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume", "DeleteVolume",
	}
	for _, finish := range []bool{true, false} {
		for _, step := range steps {
			name := step + ", then taken away"
			if finish {
				name = step + ", then finished"
			}
			t.Run(name, func(t *testing.T) {
				o := everyStep(newOther())
				o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT)
				d, config := start(t, o)
				target := filepath.Join(t.TempDir(), "target")
				crashing, crash := context.WithTimeout(t.Context(), time.Minute)
				defer crash()
				var once sync.Once
				lost := false
				o.after = func(method string) error {
					if method == step {
						once.Do(func() { lost = true; crash() })
					}
					return nil
				}
				_ = life(crashing, d, target) // interrupted
				_ = end(crashing, d)
				if !lost {
					t.Fatalf("%s was never called: %v", step, o.made())
				}
				d = dial(t, config)
				if finish && slices.Index(steps, step) <= slices.Index(steps, "CreateSnapshot") {
					if err := life(t.Context(), d, target); err != nil {
						t.Fatalf("going on: %v", err)
					}
				}
				if err := end(t.Context(), d); err != nil {
					t.Fatalf("taking away: %v", err)
				}
				o.checkEmpty(t, config.StateDir, target)
				if left := names(t, d); len(left) != 0 {
					t.Errorf("records left: %v", left)
				}
			})
		}
	}
}

func (o *other) checkEmpty(t *testing.T, stateDir, target string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.volumes) != 0 || len(o.snapshots) != 0 {
		t.Errorf("the driver still has %v and %v", o.volumes, o.snapshots)
	}
	if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the target is still there: %v", err)
	}
	if left, err := os.ReadDir(filepath.Join(stateDir, "staging")); err == nil && len(left) > 0 {
		t.Errorf("staging directories are left: %v", left)
	}
}

// Several clients share one state directory.
func TestManyAtOnce(t *testing.T) {
	o := everyStep(newOther())
	_, config := start(t, o)
	var group sync.WaitGroup
	dir := t.TempDir()
	for n := range 8 {
		d := dial(t, config)
		group.Go(func() {
			name := []string{"a", "b", "c", "d"}[n%4]
			if _, err := d.Create(t.Context(), sized(name)); err != nil {
				t.Errorf("create %s: %v", name, err)
			}
			if _, err := d.Attach(t.Context(), client.AttachRequest{Volume: name, Target: filepath.Join(dir, name)}); err != nil {
				t.Errorf("attach %s: %v", name, err)
			}
		})
	}
	group.Wait()
	d := dial(t, config)
	for _, name := range []string{"a", "b", "c", "d"} {
		if err := errors.Join(d.Detach(t.Context(), name, ""), d.Delete(t.Context(), name)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(o.volumes) != 0 {
		t.Errorf("the driver still has %d volumes", len(o.volumes))
	}
}
