//go:build ceph

package ceph

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/cephfs"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// subvolumes lists the directories of the group, and the snapshots below them.
func subvolumes(t testing.TB, e *FS) (all []string) {
	t.Helper()
	for _, name := range testkit.Value(list(shared.files, e.root))(t) {
		if strings.HasPrefix(name, ".") { // the manager's
			continue
		}
		all = append(all, name)
		snaps, err := list(shared.files, path.Join(e.root, name, ".snap"))
		if !is(err, notFound) {
			testkit.Must(t, err)
		}
		for _, snap := range snaps {
			all = append(all, name+"@"+snap)
		}
	}
	slices.Sort(all)
	return all
}

func wantNoSubvolumes(t testing.TB, e *FS) {
	t.Helper()
	testkit.EventuallyNil(t, "no subvolume left", func() error {
		if left := subvolumes(t, e); len(left) > 0 {
			return fmt.Errorf("%q", left)
		}
		return nil
	})
}

func fsSnap(t testing.TB, e *FS, name string, source volume.ID) volume.Snapshot {
	t.Helper()
	return testkit.Value(e.CreateSnapshot(testkit.Context(t), volume.SnapshotRequest{Name: name, Source: source}))(t)
}

// Snapshots stay when their volume is deleted, also beside those of its next
// creation, and take the rest of the subvolume with them.
func TestFSSnapshotsOutliveVolume(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	ctx := testkit.Context(t)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	writeFile(t, v, "file", "first")
	first := fsSnap(t, e, "first", v.ID)
	testkit.Must(t, e.Delete(ctx, v.ID))
	again := makeFS(t, e, fsRequest("v", volume.Source{}))
	if again.ID == v.ID || access.Equal(again.Locator, v.Locator) {
		t.Errorf("the new volume has the id or path of the deleted one: %+v", again)
	}
	wantFile(t, again, "file", "")
	_, err := e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "first", Source: again.ID})
	wantKind(t, err, "a snapshot with the name of one of the deleted volume", errs.Exists)
	writeFile(t, again, "file", "second")
	second := fsSnap(t, e, "second", again.ID)
	testkit.Must(t, e.Delete(ctx, again.ID))

	for s, want := range map[volume.Snapshot]string{first: "first", second: "second"} {
		if got := testkit.Value(e.GetSnapshot(ctx, s.ID))(t); got != s {
			t.Errorf("GetSnapshot: %+v, want %+v", got, s)
		}
		restored := makeFS(t, e, fsRequest("of "+want, volume.Source{Snapshot: s.ID}))
		wantFile(t, restored, "file", want)
		testkit.Must(t, e.DeleteSnapshot(ctx, s.ID), e.Delete(ctx, restored.ID))
	}
	wantNoSubvolumes(t, e)
}

// A volume that only reads shows its snapshot, which then cannot be deleted.
func TestFSVolumeShowsSnapshot(t *testing.T) {
	t.Parallel()
	config := fsConfig(t)
	e := openFS(t, config)
	ctx := testkit.Context(t)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	writeFile(t, v, "file", "frozen")
	s := fsSnap(t, e, "s", v.ID)
	writeFile(t, v, "file", "later")
	req := fsRequest("shown", volume.Source{Snapshot: s.ID})
	req.ReadOnly = true
	shown := testkit.Value(e.Create(ctx, req))(t)
	if again := testkit.Value(e.Create(ctx, req))(t); !shown.ReadOnly || shown.Progress.Running() || again.ID != shown.ID {
		t.Errorf("created %+v, then %+v; want the same, read-only, complete", shown, again)
	}
	wantFile(t, shown, "file", "frozen")
	if _, err := shared.files.Open(path.Join(pathOf(shown), "file"), os.O_WRONLY, 0); err == nil {
		t.Error("a file of a snapshot can be opened for writing")
	}
	parent, _, _ := strings.Cut(pathOf(shown), "/.snap/")
	m := testkit.Value(mountAll(parent))(t) // as a kernel does
	if users := testkit.Value(e.Watchers(ctx, shown.ID))(t); len(users) != 1 {
		t.Errorf("the clients of the volume are %+v", users)
	}
	testkit.Must(t, m.Unmount(), m.Release())
	closeFS(t, e)
	e = openFS(t, config) // what it knows comes from the cluster
	wantKind(t, e.DeleteSnapshot(ctx, s.ID), "DeleteSnapshot of one that is shown", errs.Precondition)
	_, err := e.Expand(ctx, shown.ID, volume.SizeRange{Required: 32 * mib})
	wantKind(t, err, "Expand of a volume that shows a snapshot", errs.Precondition)
	_, err = e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "of shown", Source: shown.ID})
	wantKind(t, err, "CreateSnapshot of a volume that shows one", errs.Precondition)
	testkit.Must(t, e.Delete(ctx, v.ID))
	wantFile(t, shown, "file", "frozen")
	testkit.Must(t, e.Delete(ctx, shown.ID), e.DeleteSnapshot(ctx, s.ID))
	wantNoSubvolumes(t, e)

	req.Name, req.Parameters = "copied", map[string]string{keyBacking: "false"}
	v = makeFS(t, e, fsRequest("v", volume.Source{}))
	req.Source.Snapshot = fsSnap(t, e, "s", v.ID).ID
	if c := makeFS(t, e, req); c.ReadOnly {
		t.Errorf("%s false: %+v", keyBacking, c)
	}
	req.Name, req.Source, req.Parameters = "no source", volume.Source{}, map[string]string{keyBacking: "true"}
	_, err = e.Create(ctx, req)
	wantKind(t, err, "Create with "+keyBacking+" and without a snapshot", errs.Invalid)
}

// A copy has progress, can be canceled by deleting the volume, begins again with
// the next creation, and continues after a restart of the manager and of the
// controller.
func TestFSCopyOfManyFiles(t *testing.T) {
	t.Parallel()
	config := fsConfig(t)
	e := openFS(t, config)
	source := makeFS(t, e, fsRequest("source", volume.Source{}))
	want := fillFiles(t, pathOf(source), slices.Max(soak.Pick(1, []int{3_000, 10_000}))) // of which the manager copies some 150 in a second
	req := fsRequest("copy", volume.Source{Volume: source.ID})
	req.Size.Required = 2 * source.Size
	v := testkit.Value(e.Create(t.Context(), req))(t)
	e.waitForProgress(t, v.ID)
	for what, err := range map[string]error{
		"Expand":         testkit.Err(e.Expand(t.Context(), v.ID, volume.SizeRange{Required: 4 * source.Size})),
		"CreateSnapshot": testkit.Err(e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "s", Source: v.ID})),
		"Create":         testkit.Err(e.Create(t.Context(), fsRequest("copy of the copy", volume.Source{Volume: v.ID}))),
	} {
		wantKind(t, err, what+" of a volume that is being copied", errs.Busy)
	}
	if got := reasons(testkit.Value(e.VolumeHealth(t.Context(), v.ID))(t)); got != "INACCESSIBLE "+volume.ReasonCopying {
		t.Errorf("the health of a volume that is being copied: %s", got)
	}
	testkit.Must(t, e.Delete(t.Context(), v.ID))
	_, err := e.Get(t.Context(), v.ID)
	wantKind(t, err, "Get of the volume whose copy was canceled", errs.NotFound)
	testkit.Eventually(t, "the temporary snapshot is removed", func() bool { return len(subvolumes(t, e)) == 1 })

	again := testkit.Value(e.Create(t.Context(), req))(t)
	e.waitForProgress(t, again.ID)
	closeFS(t, e)
	e = openFS(t, config)
	if v := testkit.Value(e.Create(t.Context(), req))(t); v.ID != again.ID || !v.Progress.Running() {
		t.Errorf("Create after a restart of the controller returns %+v, want %s, still running", v, again.ID)
	}
	testkit.Must(t, e.Delete(t.Context(), source.ID)) // while its copy runs
	e.waitForCopy(t, again.ID)
	done := testkit.Value(e.Get(t.Context(), again.ID))(t)
	if done.Size != req.Size.Required {
		t.Errorf("the copy has %d bytes, want %d", done.Size, req.Size.Required)
	}
	if diff := cmp.Diff(want, readFiles(t, pathOf(done))); diff != "" {
		t.Errorf("the copy differs: %s", diff)
	}
	testkit.Eventually(t, "the source is removed", func() bool { return len(subvolumes(t, e)) == 1 })
}

// waitForProgress waits until a part of a copy is done.
func (e *FS) waitForProgress(t testing.TB, id volume.ID) {
	t.Helper()
	testkit.Eventually(t, "progress of the copy", func() bool {
		p := testkit.Value(e.Get(testkit.Context(t), id))(t).Progress
		if !p.Running() {
			t.Fatalf("the copy was complete before its progress was seen: %+v", p)
		}
		return p.Done > 0
	})
}

// waitForCopy waits for the end of a copy, for as long as it has progress.
func (e *FS) waitForCopy(t testing.TB, id volume.ID) {
	t.Helper()
	for running := true; running; {
		before := testkit.Value(e.Get(testkit.Context(t), id))(t).Progress
		testkit.Eventually(t, fmt.Sprintf("more progress than %+v", before), func() bool {
			now := testkit.Value(e.Get(testkit.Context(t), id))(t).Progress
			running = now.Running()
			return !running || now.Done > before.Done
		})
	}
}

// fillFiles writes small files and returns their text by name.
func fillFiles(t testing.TB, dir string, count int) map[string]string {
	t.Helper()
	all := map[string]string{}
	for n := range count {
		name := fmt.Sprintf("%d/%d", n%100, n)
		if n < 100 {
			testkit.Must(t, shared.files.MakeDir(path.Join(dir, fmt.Sprint(n)), 0o755))
		}
		text := fmt.Sprintf("file %d", n)
		f := testkit.Value(shared.files.Open(path.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o644))(t)
		testkit.Value(f.WriteAt([]byte(text), 0))(t)
		testkit.Must(t, f.Close())
		all[name] = text
	}
	testkit.Must(t, shared.files.SyncFs())
	return all
}

func readFiles(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, sub := range testkit.Value(list(shared.files, dir))(t) {
		for _, name := range testkit.Value(list(shared.files, path.Join(dir, sub)))(t) {
			f := testkit.Value(shared.files.Open(path.Join(dir, sub, name), os.O_RDONLY, 0))(t)
			text := make([]byte, 32)
			n, err := f.ReadAt(text, 0)
			if n == 0 {
				testkit.Must(t, err)
			}
			testkit.Must(t, f.Close())
			all[sub+"/"+name] = string(text[:n])
		}
	}
	return all
}

// A copy that an administrator cancels is no complete volume, and the repeat of
// its creation begins again.
func TestFSCopyIsCanceledByOthers(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	ctx := testkit.Context(t)
	source := makeFS(t, e, fsRequest("source", volume.Source{}))
	want := fillFiles(t, pathOf(source), 60)
	s := fsSnap(t, e, "s", source.ID)
	// Four copies run at once: this one waits for seconds.
	for n := range 4 {
		testkit.Value(e.Create(ctx, fsRequest(fmt.Sprint("other ", n), volume.Source{Snapshot: s.ID})))(t)
	}
	req := fsRequest("copy", volume.Source{Snapshot: s.ID})
	v := testkit.Value(e.Create(ctx, req))(t)
	id, _ := parseFSID(v.ID)
	testkit.Value(e.manager.do("clone cancel", map[string]any{"clone_name": imageName(id.hash)}))(t)
	testkit.Eventually(t, "the health reports it", func() bool {
		all, err := e.VolumeHealth(ctx, v.ID)
		testkit.Must(t, err)
		if len(all) == 0 {
			t.Fatal("the copy was complete before it was canceled")
		}
		return reasons(all) == "DATA_LOSS "+volume.ReasonCopyFailed
	})
	if p := testkit.Value(e.Get(ctx, v.ID))(t).Progress; p.Running() || p.Failed == "" {
		t.Errorf("Get: progress %+v", p)
	}
	_, err := e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "of a part", Source: v.ID})
	wantKind(t, err, "CreateSnapshot of a volume whose copy was canceled", errs.Precondition)
	again := makeFS(t, e, req)
	if again.ID == v.ID {
		t.Error("the repeat returns the id of the volume whose copy was canceled")
	}
	if diff := cmp.Diff(want, readFiles(t, pathOf(again))); diff != "" {
		t.Errorf("the copy differs: %s", diff)
	}
	_, err = e.Get(testkit.Context(t), v.ID)
	wantKind(t, err, "Get of the volume whose copy was canceled", errs.NotFound)
}

// The metadata server ends the session of a controller whose network was
// interrupted, and refuses its client instance.
func TestFSSessionEnds(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	all := testkit.Value(e.sessions())(t)
	i := slices.IndexFunc(all, func(s fsSession) bool { return s.Root == e.root })
	if i < 0 {
		t.Fatalf("no session with root %s: %v", e.root, all)
	}
	testkit.Value(shared.Command("tell", "mds."+all[i].Server.Name, "session", "evict", fmt.Sprintf("id=%d", all[i].Client.Client)))(t)
	if got := testkit.Value(e.Get(testkit.Context(t), v.ID))(t); got.ID != v.ID {
		t.Errorf("Get: %+v", got)
	}
	makeFS(t, e, fsRequest("after", volume.Source{}))
}

// A client uses a volume also if it has mounted a directory in it, or the
// subvolume. A mount of the whole group or file system is a tool's.
func TestFSDeleteOfMounted(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	ctx := testkit.Context(t)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	testkit.Must(t, shared.files.MakeDir(pathOf(v)+"/sub", 0o755))
	for _, dir := range []string{pathOf(v) + "/sub", pathOf(v), path.Dir(pathOf(v))} {
		m := testkit.Value(mountAll(dir))(t)
		testkit.WantError(t, "Delete with a mount of "+dir, e.Delete(ctx, v.ID), errs.Precondition, "mounted by "+clusterAddress.String())
		testkit.Must(t, m.Unmount(), m.Release())
	}
	group := testkit.Value(mountAll(e.root))(t)
	testkit.EventuallyNil(t, "deleted", func() error { return e.Delete(ctx, v.ID) })
	testkit.Must(t, group.Unmount(), group.Release())
}

func TestFSOpenRefuses(t *testing.T) {
	t.Parallel()
	good := fsConfig(t)
	limited := testkit.Value(shared.User("limited", "mon", "allow r", "osd", "allow rw tag cephfs metadata="+testFS, "mds", "allow rws fsname="+testFS+" path=/volumes"))(t)
	unmanaged := testkit.Value(shared.User("unmounted", "mon", "allow r", "mgr", "allow rw", "osd", "allow rw tag cephfs metadata="+testFS))(t)
	for name, c := range map[string]struct {
		change func(*FSConfig)
		want   errs.Kind
		text   string
	}{
		"a wrong key":           {func(c *FSConfig) { c.Credentials.Key = shared.AdminKey() }, errs.Unauthenticated, "key"},
		"a missing file system": {func(c *FSConfig) { c.FS = "nosuchfs" }, errs.NotFound, testFS},
		"no mgr capability":     {func(c *FSConfig) { c.Credentials.User, c.Credentials.Key = "limited", limited }, errs.Denied, "mgr 'allow rw'"},
		// Denied, or Unavailable where Ceph does not answer.
		"no mds capability": {func(c *FSConfig) { c.Credentials.User, c.Credentials.Key = "unmounted", unmanaged }, "", "mds 'allow *'"},
	} {
		bad := good
		c.change(&bad)
		e, err := OpenFS(testkit.Context(t), bad)
		if c.want != "" {
			wantKind(t, err, "OpenFS with "+name, c.want)
		}
		if err == nil {
			t.Errorf("OpenFS with %s succeeded", name)
			closeFS(t, e)
		} else if strings.Contains(err.Error(), bad.Credentials.Key) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("the error has the key, or not %q: %v", c.text, err)
		}
	}
}

// adoptable lays out a subvolume as ceph-csi does, with further records.
func adoptable(t *testing.T, e *FS, uuid string, more map[string][]byte) volume.ID {
	t.Helper()
	name := "csi-vol-" + uuid
	testkit.Must(t, e.manager.make(name, 16*mib, ""))
	io := testkit.Value(shared.client.OpenIOContext(e.pools[0].name))(t)
	defer io.Destroy()
	io.SetNamespace("csi")
	journal := map[string][]byte{"csi.volname": []byte("pvc-" + uuid), "csi.imagename": []byte(name), "csi.volume.owner": []byte("default")}
	for key, value := range more {
		journal[key] = value
	}
	testkit.Must(t, io.SetOmap("csi.volume."+uuid, journal))
	return volume.ID(handle{cluster: "test", pool: e.id, uuid: uuid}.String())
}

func TestFSAdopt(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	ctx := testkit.Context(t)
	id := adoptable(t, e, "b0285c97-a0ce-11eb-8c66-0242ac110002", nil)
	v := testkit.Value(e.Get(ctx, id))(t)
	if v.ID != id || v.Size != 16*mib || v.FSType != FSType || !strings.HasPrefix(pathOf(v), e.root+"/csi-vol-") {
		t.Errorf("Get: %+v", v)
	}
	writeFile(t, v, "file", "kept")
	if grown := testkit.Value(e.Expand(ctx, id, volume.SizeRange{Required: 32 * mib}))(t); grown.Size != 32*mib || grown.ID != id {
		t.Errorf("Expand: %+v", grown)
	}
	if all := testkit.Value(e.VolumeHealth(ctx, id))(t); len(all) > 0 {
		t.Errorf("VolumeHealth: %+v", all)
	}
	wantKind(t, e.Delete(ctx, id), "Delete", errs.Precondition)
	wantKind(t, testkit.Err(e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "s", Source: id})), "CreateSnapshot", errs.Precondition)
	wantKind(t, testkit.Err(e.Create(ctx, fsRequest("clone", volume.Source{Volume: id}))), "Create of a clone", errs.Precondition)
	if all := testkit.Value(e.List(ctx, "", 0))(t); len(all) > 0 {
		t.Errorf("List: %+v", all)
	}
	wantFile(t, v, "file", "kept")

	missing := handle{cluster: "test", pool: e.id, uuid: "b0285c97-a0ce-11eb-8c66-000000000000"}
	elsewhere := handle{cluster: "other", pool: e.id, uuid: missing.uuid}
	for id, want := range map[volume.ID]errs.Kind{
		adoptable(t, e, "b0285c97-a0ce-11eb-8c66-000000000001", map[string][]byte{csiKMS: []byte("vault")}):    errs.Precondition,
		adoptable(t, e, "b0285c97-a0ce-11eb-8c66-000000000002", map[string][]byte{csiBacking: []byte("snap")}): errs.Precondition,
		volume.ID(missing.String()): errs.NotFound, volume.ID(elsewhere.String()): errs.Precondition,
	} {
		_, err := e.Get(ctx, id)
		wantKind(t, err, "Get of "+string(id), want)
		if err := e.Delete(ctx, id); errors.Is(err, nil) != (want == errs.NotFound) {
			t.Errorf("Delete of %s: %v", id, err)
		}
	}
}

// A controller that did not end cannot change anything once the next one serves.
func TestFSTakeOver(t *testing.T) {
	t.Parallel()
	config := fsConfig(t)
	ctx := testkit.Context(t)
	old := openFS(t, config)
	v := makeFS(t, old, fsRequest("v", volume.Source{}))
	next := openFS(t, config)
	writeFile(t, v, "file", "kept")
	wantKind(t, old.Delete(ctx, v.ID), "Delete by the controller that was replaced", errs.Unavailable)
	wantKind(t, testkit.Err(old.Create(ctx, fsRequest("late", volume.Source{}))), "Create by the controller that was replaced", errs.Unavailable)
	wantFile(t, v, "file", "kept")
	testkit.Must(t, next.Delete(ctx, v.ID))
	wantNoSubvolumes(t, next)
}

// A damaged record concerns its volume only.
func TestFSDamagedRecord(t *testing.T) {
	t.Parallel()
	config := fsConfig(t)
	e := openFS(t, config)
	damaged, other := makeFS(t, e, fsRequest("damaged", volume.Source{})), makeFS(t, e, fsRequest("other", volume.Source{}))
	testkit.Must(t, shared.files.SetXattr(path.Dir(pathOf(damaged)), attrVolume, []byte("{"), cephfs.XattrDefault))
	e = openFS(t, config)
	wantDamaged(t, e, damaged.ID, fsRequest("damaged", volume.Source{}), other)
	if got := subvolumes(t, e); len(got) != 2 {
		t.Errorf("subvolumes: %q", got)
	}
}

// A volume whose record is damaged can be one that shows a snapshot, unless it
// has files.
func TestFSDamagedRecordOfShownSnapshot(t *testing.T) {
	t.Parallel()
	config := fsConfig(t)
	e := openFS(t, config)
	ctx := testkit.Context(t)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	writeFile(t, v, "file", "frozen")
	s := fsSnap(t, e, "s", v.ID)
	req := fsRequest("shown", volume.Source{Snapshot: s.ID})
	req.ReadOnly = true
	shown := testkit.Value(e.Create(ctx, req))(t)
	dir := func(v volume.Volume) string { return path.Join(e.root, imageName(hash(v.Name))) }
	record := func(v volume.Volume, text []byte) {
		t.Helper()
		testkit.Must(t, shared.files.SetXattr(dir(v), attrVolume, text, cephfs.XattrDefault))
	}
	other := makeFS(t, e, fsRequest("other", volume.Source{}))
	writeFile(t, other, "file", "content")
	text := testkit.Value(shared.files.GetXattr(dir(shown), attrVolume))(t)
	record(shown, []byte("{"))
	record(other, []byte("{"))
	closeFS(t, e)
	e = openFS(t, config)
	err := e.DeleteSnapshot(ctx, s.ID)
	if !errors.Is(err, errDamaged) || errs.KindOf(err) != errs.Precondition {
		t.Errorf("DeleteSnapshot of one that a damaged volume can show: %v", err)
	}
	wantFile(t, shown, "file", "frozen")
	record(shown, text)
	wantKind(t, e.DeleteSnapshot(ctx, s.ID), "DeleteSnapshot of one that a repaired volume shows", errs.Precondition)
	testkit.Must(t, e.Delete(ctx, shown.ID), e.DeleteSnapshot(ctx, s.ID))
}

// A subvolume that was made by hand under the name of a volume is neither
// replaced nor taken for it.
func TestFSRestoredSubvolume(t *testing.T) {
	t.Parallel()
	config := fsConfig(t)
	e := openFS(t, config)
	ctx := testkit.Context(t)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	name := imageName(hash("v"))
	subvolume := func(command string, more ...string) {
		t.Helper()
		args := append([]string{"fs", "subvolume", command, testFS, name, "--group_name", e.manager.group}, more...)
		testkit.Value(shared.Command(args...))(t)
	}
	subvolume("rm")
	testkit.Must(t, e.Delete(ctx, v.ID)) // nothing of it exists
	subvolume("create")
	for range 2 {
		wantKind(t, testkit.Err(e.Create(ctx, fsRequest("v", volume.Source{}))), "Create", errs.Precondition)
		wantKind(t, testkit.Err(e.Get(ctx, v.ID)), "Get", errs.Precondition)
		wantKind(t, e.Delete(ctx, v.ID), "Delete", errs.Precondition)
		e = openFS(t, config)
	}
	if got := subvolumes(t, e); len(got) != 1 {
		t.Errorf("subvolumes: %q", got)
	}
	subvolume("rm")
	wantNoSubvolumes(t, e)
}

// Clients enforce a quota late: a volume can have more than its size, and so can
// its copies.
func TestFSMoreThanItsQuota(t *testing.T) {
	t.Parallel()
	e := openFS(t, fsConfig(t))
	ctx := testkit.Context(t)
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	writeFile(t, v, "file", strings.Repeat("x", 8*mib))
	testkit.Must(t, shared.files.SetXattr(pathOf(v), "ceph.quota.max_bytes", fmt.Append(nil, 4*mib), cephfs.XattrDefault))
	testkit.Eventually(t, "the usage is counted", func() bool {
		id, _ := parseFSID(v.ID)
		s := testkit.Value(e.mount.inspect(imageName(id.hash)))(t)
		return s.size == 4*mib && testkit.Value(e.mount.used(s.content()))(t) == 8*mib
	})
	for _, size := range []int64{4 * mib, 5 * mib} {
		req := fsRequest(fmt.Sprint("copy of ", size), volume.Source{Volume: v.ID})
		req.Size.Required = size
		if c := makeFS(t, e, req); c.Size != size {
			t.Errorf("the copy has %d bytes, want %d", c.Size, size)
		}
	}
	if got := testkit.Value(e.Expand(ctx, v.ID, volume.SizeRange{Required: 5 * mib}))(t); got.Size != 5*mib {
		t.Errorf("Expand: %d bytes, want %d", got.Size, 5*mib)
	}
}
