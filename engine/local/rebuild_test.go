package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/xattr"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// everything is what the calls of an engine return.
type everything struct {
	Volumes   []volume.Volume
	Snapshots []volume.Snapshot
	Group     volume.Group
	Promised  int64
	Files     map[string]string
}

func listAll(t *testing.T, e *Engine, group volume.GroupID) everything {
	t.Helper()
	all := everything{
		Volumes:   testkit.Value(e.List(t.Context(), "", 0))(t),
		Snapshots: testkit.Value(e.ListSnapshots(t.Context(), volume.SnapshotQuery{}))(t),
		Promised:  e.budget.promised(),
		Files:     map[string]string{},
	}
	if group != "" {
		all.Group = testkit.Value(e.GetGroup(t.Context(), group))(t)
	}
	for _, dir := range []string{volumesDir, snapshotsDir} {
		for _, name := range testkit.Value(e.pool.names(dir))(t) {
			text := testkit.Value(os.ReadFile(filepath.Join(e.pool.path, dir, name)))(t)
			all.Files[dir+"/"+name] = string(text)
		}
	}
	return all
}

// populate creates objects of all kinds.
func populate(t *testing.T, e *Engine) (volume.Volume, volume.Group) {
	t.Helper()
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}, Parameters: map[string]string{"trimInterval": "1h", "readAheadKiB": "256"}})
	fill(t, file(e, v), mib)
	w := create(t, e, volume.CreateRequest{Name: "w", Size: volume.SizeRange{Required: mib}, Parameters: thickly})
	create(t, e, volume.CreateRequest{Name: "fs", Content: volume.Filesystem, FSType: "ext4", Size: volume.SizeRange{Required: 8 * mib}})
	create(t, e, volume.CreateRequest{Name: "inline", Content: volume.Filesystem, Ephemeral: true, Size: volume.SizeRange{Required: 8 * mib}})
	s := snapshot(t, e, "s", w.ID)
	g := testkit.Value(e.CreateGroup(t.Context(), volume.GroupRequest{Name: "g", Sources: []volume.ID{v.ID, w.ID}}))(t)
	for _, s := range append(g.Snapshots, s) {
		waitCopied(t, e, string(s.ID))
	}
	create(t, e, volume.CreateRequest{Name: "restored", Source: volume.Source{Snapshot: s.ID}, Size: volume.SizeRange{Required: 2 * mib}})
	create(t, e, volume.CreateRequest{Name: "clone", Source: volume.Source{Volume: v.ID}})
	testkit.Value(e.Expand(t.Context(), v.ID, volume.SizeRange{Required: 3 * mib}))(t)
	testkit.Value(e.Modify(t.Context(), v.ID, map[string]string{"readAheadKiB": "512"}))(t)
	return v, g
}

// Nothing is lost with engine.db, on file systems with and without shared
// blocks.
func TestRebuild(t *testing.T) {
	for name, pool := range map[string]func(testing.TB) string{"xfs": onXFS, "ext4": onExt4} {
		t.Run(name, func(t *testing.T) {
			c := config(pool(t))
			e := open(t, c)
			v, g := populate(t, e)
			e = reopen(t, e)
			want := listAll(t, e, g.ID)
			_, err := Rebuild(t.Context(), c, RebuildOptions{})
			wantKind(t, err, "Rebuild of a served pool", errs.Precondition)
			closeEngine(t, e)
			_, err = Rebuild(t.Context(), c, RebuildOptions{})
			wantKind(t, err, "Rebuild of readable records", errs.Precondition)
			testkit.Must(t, os.WriteFile(filepath.Join(c.Pool, storeName), []byte("damaged"), 0o600))
			r := testkit.Value(Rebuild(t.Context(), c, RebuildOptions{}))(t)
			if _, err := os.Stat(r.Aside + ".backup"); err != nil {
				t.Errorf("the copy of the records: %v", err)
			}
			if text, err := os.ReadFile(r.Aside); !r.Complete() || err != nil || string(text) != "damaged" {
				t.Errorf("%+v; the damaged file: %q, %v", r, text, err)
			}
			e = open(t, c)
			if diff := cmp.Diff(want, listAll(t, e, g.ID), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("before and after:\n%s", diff)
			}
			again := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: mib}, Parameters: map[string]string{"trimInterval": "1h", "readAheadKiB": "256"}})
			if again.ID != v.ID {
				t.Errorf("a repeated Create made %s", again.ID)
			}
			testkit.Must(t, e.DeleteGroup(t.Context(), g.ID), e.Delete(t.Context(), v.ID))
			closeEngine(t, e)
			testkit.Value(Remove(t.Context(), c, RemoveOptions{DeleteVolumes: true}))(t)
		})
	}
}

// removeRecords makes the files of a pool those of a release before Rebuild.
func removeRecords(t testing.TB, pool string) {
	t.Helper()
	for _, name := range testkit.Value(filepath.Glob(filepath.Join(pool, "*s", "*-*")))(t) {
		f := testkit.Value(os.OpenFile(name, os.O_RDWR, 0))(t)
		testkit.Must(t, xattr.Remove(f, xattr.Prefix+"record"), xattr.Remove(f, xattr.Prefix+"parameters"), f.Close())
	}
}

// The first start after an upgrade writes the records into the files of the
// release before, so that nothing of them is unknown to Rebuild.
func TestRecordsOfAnEarlierReleaseAreWritten(t *testing.T) {
	c := config(onXFS(t))
	e := open(t, c)
	_, g := populate(t, e)
	want := listAll(t, e, g.ID)
	closeEngine(t, e)
	removeRecords(t, c.Pool)
	closeEngine(t, open(t, c))
	testkit.Must(t, os.Remove(filepath.Join(c.Pool, storeName)))
	if r := testkit.Value(Rebuild(t.Context(), c, RebuildOptions{}))(t); !r.Complete() {
		t.Errorf("%+v", r)
	}
	if diff := cmp.Diff(want, listAll(t, open(t, c), g.ID), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("before and after:\n%s", diff)
	}
}

// A pool of an older release has none of the new attributes. Every file that
// cleat made gets a record, no other does, and the list says what is unknown.
func TestRebuildWithoutAttributes(t *testing.T) {
	c := config(onXFS(t))
	e := open(t, c)
	v, g := populate(t, e)
	before := listAll(t, e, g.ID)
	closeEngine(t, e)
	removeRecords(t, c.Pool)
	foreign := filepath.Join(c.Pool, volumesDir, "vol-orphan")
	testkit.Must(t, os.WriteFile(foreign, nil, 0o600), os.Remove(filepath.Join(c.Pool, storeName)))
	killed := filepath.Join(c.Pool, rebuildDraft) // of a Rebuild
	testkit.Must(t, os.WriteFile(killed, []byte("incomplete"), 0o600))
	r := testkit.Value(Rebuild(t.Context(), c, RebuildOptions{}))(t)
	if len(r.Ignored) != 1 || r.Ignored[0].Path != "volumes/vol-orphan" || r.Complete() || r.Aside != "" {
		t.Errorf("%+v", r)
	}
	i := slices.IndexFunc(r.Objects, func(o RebuiltObject) bool { return o.ID == string(v.ID) })
	if got := strings.Join(r.Objects[i].Unknown, "; "); !strings.HasPrefix(got, "name; source; ") || !strings.Contains(got, "an unknown file system") {
		t.Errorf("unknown of %s: %s", v.ID, got)
	}
	e = open(t, c)
	after := listAll(t, e, "")
	if len(after.Volumes) != len(before.Volumes) || len(after.Snapshots) != len(before.Snapshots) {
		t.Errorf("%+v", after)
	}
	for i, v := range after.Volumes {
		b := before.Volumes[i]
		if v.ID != b.ID || v.Size != b.Size || v.Name != string(v.ID) || !cmp.Equal(v.Attributes, b.Attributes) || v.Content != volume.Filesystem {
			t.Errorf("%+v was %+v", v, b)
		}
	}
	for name, text := range before.Files {
		if after.Files[name] != text {
			t.Errorf("%s changed", name)
		}
	}
	for _, s := range after.Snapshots {
		create(t, e, volume.CreateRequest{Name: fmt.Sprint("from ", s.ID), Source: volume.Source{Snapshot: s.ID}})
		testkit.Must(t, e.DeleteSnapshot(t.Context(), s.ID))
	}
	for _, v := range testkit.Value(e.List(t.Context(), "", 0))(t) {
		testkit.Must(t, e.Delete(t.Context(), v.ID))
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
}
