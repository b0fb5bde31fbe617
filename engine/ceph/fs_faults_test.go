//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceph/go-ceph/cephfs"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// While the manager hangs, calls end at their deadlines, and its late answers do
// no harm. With a timeout of librados they did.
func TestFSManagerHangs(t *testing.T) {
	const timeout = "rados_mon_op_timeout"
	before := options[timeout]
	options[timeout] = "1"
	e := openFS(t, fsConfig(t))
	options[timeout] = before
	var pid int
	text := testkit.Value(os.ReadFile(path.Join(path.Dir(shared.Conf()), "run", "mgr.x.pid")))(t)
	testkit.Value(fmt.Sscan(string(text), &pid))(t)
	testkit.Must(t, syscall.Kill(pid, syscall.SIGSTOP))
	restore := sync.OnceFunc(func() { testkit.Must(t, syscall.Kill(pid, syscall.SIGCONT)) })
	defer restore()
	ctx, cancel := context.WithTimeout(testkit.Context(t), 4*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			_, err := e.Create(ctx, fsRequest(fmt.Sprint("v", n), volume.Source{}))
			wantKind(t, err, "Create while the manager hangs", errs.Unavailable)
		})
	}
	all.Wait()
	restore()
	for n := range 8 {
		v := testkit.Value(e.Create(testkit.Context(t), fsRequest(fmt.Sprint("v", n), volume.Source{})))(t)
		testkit.Must(t, e.Delete(testkit.Context(t), v.ID))
	}
	wantNoSubvolumes(t, e)
}

// The engine's mount has ended, and the subvolume group, or the whole file system,
// is not there when it mounts again: then nothing is known of the volumes.
func TestFSGroupIsMissing(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	ctx := testkit.Context(t)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	end := func() {
		if current := e.mount.current; current != nil {
			testkit.Value(e.mount.acquire())(t)
			e.mount.release(current, true)
		}
	}
	unknown := func(what string, kind errs.Kind) {
		end()
		wantKind(t, testkit.Err(e.Get(ctx, v.ID)), "Get "+what, kind)
		wantKind(t, e.Delete(ctx, v.ID), "Delete "+what, kind)
	}
	testkit.Must(t, shared.files.Rename(e.root, e.root+"-away"))
	unknown("without the group", errs.Unavailable)
	testkit.Must(t, shared.files.Rename(e.root+"-away", e.root))
	name := e.mount.fs
	e.mount.fs = "none"
	unknown("without the file system", errs.Unavailable)
	e.mount.fs = name
	e.mount.id++
	unknown("in another file system of the name", errs.Precondition)
	e.mount.id--
	testkit.Must(t, e.Delete(ctx, v.ID))
	wantNoSubvolumes(t, e)
}

// A copy that cannot begin leaves nothing in its source.
func TestFSCopyDoesNotBegin(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	req := fsRequest("copy", volume.Source{Volume: v.ID})
	req.Parameters = map[string]string{keyPool: "nosuch"}
	_, err := e.Create(testkit.Context(t), req)
	wantKind(t, err, "Create of a copy in a pool that does not exist", errs.Invalid)
	testkit.Must(t, e.Delete(testkit.Context(t), v.ID))
	wantNoSubvolumes(t, e)
}

// A manager that is killed while it creates a subvolume leaves directories of
// which it knows nothing later.
func TestFSManagerWasKilled(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	ctx := testkit.Context(t)
	name := imageName(hash("v"))
	for _, retained := range []bool{false, true} {
		var s volume.Snapshot
		if retained {
			v := makeFS(t, e, fsRequest("v", volume.Source{}))
			s = fsSnap(t, e, "s", v.ID)
			testkit.Must(t, e.Delete(ctx, v.ID))
		} else {
			testkit.Must(t, shared.files.MakeDir(path.Join(e.root, name), 0o755))
		}
		testkit.Must(t, e.pools[0].beginCreation(hash("v"), "00000000-0000-4000-8000-000000000000"))
		for n := range 3 {
			testkit.Must(t, shared.files.MakeDir(path.Join(e.root, name, fmt.Sprintf("bc97a497-3114-492f-9f44-d2b1f271b4e%d", n)), 0o777))
		}
		v := testkit.Value(e.Create(ctx, fsRequest("v", volume.Source{})))(t)
		out := testkit.Value(shared.Command("fs", "subvolume", "getpath", testFS, name, "--group_name", e.manager.group))(t)
		if got := strings.TrimSpace(out); got != pathOf(v) {
			t.Errorf("the volume is at %s, its subvolume at %s", pathOf(v), got)
		}
		testkit.Must(t, e.Delete(ctx, v.ID))
		wantKind(t, testkit.Err(e.Get(ctx, v.ID)), "Get of the deleted volume", errs.NotFound)
		if retained {
			testkit.Must(t, e.DeleteSnapshot(ctx, s.ID))
		}
		wantNoSubvolumes(t, e)
	}
}

// A volume can be read while its snapshots are deleted.
func TestFSGetDuringDeleteSnapshot(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	ctx, cancel := context.WithCancel(testkit.Context(t))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := e.Get(ctx, v.ID); err != nil && ctx.Err() == nil {
					t.Errorf("Get: %v", err)
					return
				}
			}
		})
	}
	for n := range 6 {
		s := fsSnap(t, e, fmt.Sprint("s", n), v.ID)
		testkit.Must(t, e.DeleteSnapshot(testkit.Context(t), s.ID))
	}
	cancel()
	all.Wait()
}

// The end of a copy changes the quota, then the record. It can come between any two
// reads of a call: the answer has the size of the request.
func TestFSSizeAtTheEndOfACopy(t *testing.T) {
	t.Parallel()
	c := fsConfig(t)
	c.Interval = time.Hour // the test ends the copy
	e := openFS(t, c)
	source := makeFS(t, e, fsRequest("source", volume.Source{}))
	req := fsRequest("copy", volume.Source{Volume: source.ID})
	req.Size.Required = 2 * source.Size
	v := testkit.Value(e.Create(testkit.Context(t), req))(t)
	running := testkit.Value(e.find(v.ID))(t)
	testkit.Eventually(t, "the manager has copied", func() bool {
		return testkit.Value(e.manager.cloneStatus(running.name))(t).State == cloneComplete
	})
	for point, isLast := 1, false; !isLast; point++ {
		testkit.Must(t, e.manager.grow(running.name, source.Size), e.mount.setRecord(running.name, *running.record))
		var got *subvolume
		got, isLast = loadInterrupted(t, e, running.name, point, func() { testkit.Value(e.endCopy(running))(t) })
		if size := e.volume(got).Size; size != req.Size.Required {
			t.Errorf("the copy ends after read %d: a volume of %d bytes, want %d", point, size, req.Size.Required)
		}
	}
}

// The deletion of a volume can also come between two reads. Its snapshots stay.
func TestFSSnapshotAtADeletion(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	fsSnap(t, e, "s", makeFS(t, e, fsRequest("v", volume.Source{})).ID)
	for point, isLast := 1, false; !isLast; point++ {
		v := makeFS(t, e, fsRequest("v", volume.Source{}))
		var got *subvolume
		got, isLast = loadInterrupted(t, e, imageName(hash("v")), point, func() { testkit.Must(t, e.Delete(testkit.Context(t), v.ID)) })
		if len(got.snapRecords) != 1 {
			t.Errorf("the volume is deleted after read %d: its snapshots are %+v", point, got.snapRecords)
		}
	}
}

// loadInterrupted reads a subvolume, and calls change after one of the reads. It
// reports whether there are no more reads.
func loadInterrupted(t testing.TB, e *FS, name string, point int, change func()) (s *subvolume, isLast bool) {
	t.Helper()
	s, reads := &subvolume{name: name, snapRecords: map[string]fsSnapRecord{}}, 0
	testkit.Must(t, e.mount.use(func(i *cephfs.MountInfo) error {
		return s.load(interrupted{i, func() {
			if reads++; reads == point {
				change()
			}
		}})
	}))
	return s, reads <= point
}

// interrupted is a mount that calls read after each read.
type interrupted struct {
	*cephfs.MountInfo
	read func()
}

func (i interrupted) OpenDir(path string) (*cephfs.Directory, error) {
	defer i.read()
	return i.MountInfo.OpenDir(path)
}

func (i interrupted) ListXattr(path string) ([]string, error) {
	defer i.read()
	return i.MountInfo.ListXattr(path)
}

func (i interrupted) GetXattr(path, name string) ([]byte, error) {
	defer i.read()
	return i.MountInfo.GetXattr(path, name)
}

// A copy that waits for others, which can take hours, does not load the manager.
func TestFSWhileBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		calls := 0
		err := whileBusy(ctx, func() error {
			calls++
			return syscall.EAGAIN
		})
		if !errors.Is(err, syscall.EAGAIN) || calls > 70 {
			t.Errorf("%d calls in a minute, then %v", calls, err)
		}
	})
}

// A client that has just mounted a volume is known to a fence.
func TestFSWatchersAreNew(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	for range 3 {
		if got := testkit.Value(e.Watchers(testkit.Context(t), v.ID))(t); len(got) > 0 {
			t.Errorf("clients of a volume that is not mounted: %+v", got)
		}
		end := mountFS(t, v)
		if got := testkit.Value(e.Watchers(testkit.Context(t), v.ID))(t); len(got) != 1 {
			t.Errorf("clients of a mounted volume: %+v", got)
		}
		end()
	}
}

// A job that is added again while an attempt completes the copy before it stays:
// without it the new volume would be "being copied" until a restart.
func TestCopyAddedDuringAnAttempt(t *testing.T) {
	j := copyJob{target: "csi-vol-a", from: "csi-vol-b", snap: "s"}
	c := &copies{changed: make(chan struct{}, 1), jobs: map[copyJob]*copyAttempts{}}
	c.add(j)
	attempts := c.list()[j]
	c.add(j)
	if c.tried(j, attempts, true, nil); len(c.list()) != 1 {
		t.Fatal("the job is lost")
	}
	if c.tried(j, c.list()[j], true, nil); len(c.list()) != 0 {
		t.Error("a completed job stays")
	}
}
