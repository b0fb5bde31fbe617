//go:build ceph

package ceph

import (
	"slices"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// rbdTool runs commands of the rbd program. VOLUME stands for the image of the
// volume "v".
func rbdTool(t *testing.T, c Config, commands ...string) {
	t.Helper()
	spec := testPool + "/" + c.Cluster.RBD.RadosNamespace + "/" + imageName(hash("v"))
	for _, command := range commands {
		if out, err := shared.RBD(strings.Fields(strings.ReplaceAll(command, "VOLUME", spec))...); err != nil {
			t.Fatalf("rbd %s: %v: %s", command, err, out)
		}
	}
}

func writeImage(t *testing.T, v volume.Volume) {
	t.Helper()
	d := openVolume(t, v)
	testkit.Value(d.WriteAt([]byte("cleat"), 0))(t)
	testkit.Must(t, d.Close())
}

func wantContent(t *testing.T, v volume.Volume) {
	t.Helper()
	d := openVolume(t, v)
	defer d.Close()
	p := make([]byte, 5)
	if testkit.Value(d.ReadAt(p, 0))(t); string(p) != "cleat" {
		t.Errorf("volume %s begins with %q", v.ID, p)
	}
}

// A parent in another namespace counts, and its own parents are unknown.
func TestParentInOtherNamespace(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	namespace := config.Cluster.RBD.RadosNamespace
	parent := testPool + "/parent-of-" + namespace // in the default namespace
	rbdTool(t, config, "create --size 16M "+parent, "snap create "+parent+"@s", "clone --rbd-default-clone-format 2 "+parent+"@s VOLUME")
	t.Cleanup(func() { rbdTool(t, config, "snap purge "+parent, "rm "+parent) })
	e := open(t, config)
	found := testkit.Value(e.pools[0].inspect(imageName(hash("v"))))(t)
	rbdTool(t, config, `image-meta set VOLUME cleat.volume {"image":"`+found.id+`","name":"v","content":"raw"}`)
	v := testkit.Value(e.Get(testkit.Context(t), volume.ID(volumeID{pool: e.pools[0].id, hash: hash("v"), image: found.id}.String())))(t)
	if n := depthOf(t, e, v); n != 1 {
		t.Errorf("the volume has depth %d", n)
	}
	if got := reasons(testkit.Value(e.VolumeHealth(testkit.Context(t), v.ID))(t)); got != "" {
		t.Errorf("its health is %s", got)
	}
	create(t, e, "clone", volume.Source{Volume: v.ID})
	testkit.Must(t, e.Delete(testkit.Context(t), v.ID)) // not listed: it had no record when the engine started
	deleteAll(t, e)
}

// An image that Ceph's tools migrate or copy under its name stays that of the
// volume, although its internal id changes.
func TestMovedImage(t *testing.T) {
	for name, commands := range map[string][]string{
		"migration": {"migration prepare VOLUME VOLUME", "migration execute VOLUME", "migration commit VOLUME"},
		"deep copy": {"deep cp VOLUME VOLUME-copy", "snap purge VOLUME", "rm VOLUME", "mv VOLUME-copy VOLUME"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(t)
			ctx := testkit.Context(t)
			e := open(t, config)
			v := create(t, e, "v", volume.Source{})
			writeImage(t, v)
			s := takeSnap(t, e, "s", v.ID)
			rbdTool(t, config, commands...)

			for range 2 { // also with the next controller
				moved := testkit.Value(e.Get(ctx, v.ID))(t)
				if was, is := v.Locator.(access.RBD), moved.Locator.(access.RBD); was.ImageID == is.ImageID || was.Image != is.Image {
					t.Errorf("locator %+v, was %+v", is, was)
				}
				if again := create(t, e, "v", volume.Source{}); again.ID != v.ID {
					t.Errorf("a repeated creation returns %s, want %s", again.ID, v.ID)
				}
				// Ceph gives the copy's snapshot another id.
				wantKind(t, e.DeleteSnapshot(ctx, s.ID), "DeleteSnapshot", errs.Precondition)
				closeEngine(t, e)
				e = open(t, config)
			}
			snaps := testkit.Value(e.ListSnapshots(ctx, volume.SnapshotQuery{}))(t)
			if len(snaps) != 1 || snaps[0].Source != v.ID || snaps[0].Name != "s" {
				t.Fatalf("snapshots %+v", snaps)
			}
			clone := create(t, e, "clone", volume.Source{Snapshot: snaps[0].ID})
			wantContent(t, clone)
			testkit.Must(t, e.Delete(ctx, v.ID))
			if _, err := e.Get(ctx, v.ID); errs.KindOf(err) != errs.NotFound {
				t.Errorf("Get of the deleted volume: %v", err)
			}
			// A late call does not delete the next volume of that name, not even one
			// that is made of the old one's snapshot.
			next := create(t, e, "v", volume.Source{Snapshot: snaps[0].ID})
			testkit.Must(t, e.Delete(ctx, v.ID))
			wantContent(t, testkit.Value(e.Get(ctx, next.ID))(t))
			deleteAll(t, e)
			wantNoImages(t, config.Cluster.RBD.RadosNamespace)
		})
	}
}

// An image under a volume's name without a record, as of a backup, is neither
// replaced nor taken for the volume, and can become it.
func TestRestoredImage(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	ctx := testkit.Context(t)
	e := open(t, config)
	v := create(t, e, "v", volume.Source{})
	writeImage(t, v)
	backup := t.TempDir() + "/backup"
	rbdTool(t, config, "export VOLUME "+backup, "rm VOLUME")
	testkit.Must(t, e.Delete(ctx, v.ID)) // nothing of it exists
	rbdTool(t, config, "import "+backup+" VOLUME")
	closeEngine(t, e)

	e = open(t, config)
	_, err := e.Create(ctx, request("v", volume.Source{}))
	wantKind(t, err, "Create", errs.Precondition)
	wantKind(t, testkit.Err(e.Get(ctx, v.ID)), "Get", errs.Precondition)
	wantKind(t, e.Delete(ctx, v.ID), "Delete", errs.Precondition)
	_, advice, found := strings.Cut(err.Error(), "with: rbd ")
	words := strings.Fields(advice)
	if !found || len(words) != 5 {
		t.Fatalf("the error names no command: %v", err)
	}
	words[4] = strings.Trim(words[4], "'")
	testkit.Value(shared.RBD(words...))(t)
	adopted := create(t, e, "v", volume.Source{})
	wantContent(t, adopted)
	testkit.Must(t, e.Delete(ctx, adopted.ID))
	deleteAll(t, e)
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}

// A volume whose image Ceph's tools took away is not gone.
func TestImageTakenAway(t *testing.T) {
	for name, c := range map[string]struct{ away, back []string }{
		"renamed":           {[]string{"mv VOLUME VOLUME-old"}, []string{"mv VOLUME-old VOLUME"}},
		"migrating":         {[]string{"migration prepare VOLUME VOLUME"}, []string{"migration abort VOLUME"}},
		"migrating to name": {[]string{"migration prepare VOLUME VOLUME-new"}, []string{"migration abort VOLUME-new"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(t)
			ctx := testkit.Context(t)
			e := open(t, config)
			v := create(t, e, "v", volume.Source{})
			writeImage(t, v)
			rbdTool(t, config, c.away...)
			wantKind(t, e.Delete(ctx, v.ID), "Delete", errs.Precondition)
			rbdTool(t, config, c.back...)
			wantContent(t, testkit.Value(e.Get(ctx, v.ID))(t))
			deleteAll(t, e)
			wantNoImages(t, config.Cluster.RBD.RadosNamespace)
		})
	}
}

// A clone has the metadata of its source, and the name of that volume if it was
// deleted: until the creation ended, the source's record is not the clone's.
func TestInterruptedNamesake(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	ctx := testkit.Context(t)
	e := open(t, config)
	v := create(t, e, "v", volume.Source{})
	writeImage(t, v)
	s := takeSnap(t, e, "s", v.ID)
	id, _ := parseVolumeID(v.ID)
	testkit.Must(t, e.Delete(ctx, v.ID), e.pools[0].beginCreation(id.hash, "00000000-0000-4000-8000-000000000000"))
	source := testPool + "/" + e.pools[0].namespace + "/" + deletedName(id.image) + "@" + snapName(hash("s"))
	rbdTool(t, config, "clone --rbd-default-clone-format 2 "+source+" VOLUME")
	closeEngine(t, e)

	e = open(t, config)
	wantKind(t, testkit.Err(e.Get(ctx, v.ID)), "Get of the deleted volume", errs.NotFound)
	testkit.Must(t, e.Delete(ctx, v.ID))
	next := create(t, e, "v", volume.Source{Snapshot: s.ID})
	if next.ID == v.ID {
		t.Errorf("the next volume has the id of the deleted one, %s", v.ID)
	}
	wantContent(t, next)
	deleteAll(t, e)
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}

// Records of earlier releases have no UUID.
func TestMovedImageOfEarlierRelease(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	ctx := testkit.Context(t)
	e := open(t, config)
	v := create(t, e, "v", volume.Source{})
	i := testkit.Value(rbd.OpenImage(ioctx(t, config.Cluster.RBD.RadosNamespace), imageName(hash("v")), rbd.NoSnapshot))(t)
	record := testkit.Value(decodeVolume(testkit.Value(i.GetMetadata(keyVolume))(t), ""))(t)
	record.UUID = ""
	testkit.Must(t, i.SetMetadata(keyVolume, encode(record)), i.Close())
	rbdTool(t, config, "migration prepare VOLUME VOLUME", "migration execute VOLUME", "migration commit VOLUME")
	closeEngine(t, e)
	e = open(t, config)
	if all := testkit.Value(e.List(ctx, "", 0))(t); !slices.ContainsFunc(all, func(x volume.Volume) bool { return x.ID == v.ID }) {
		t.Errorf("List: %+v", all)
	}
	deleteAll(t, e)
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}

// An image of another program becomes a volume as docs/ceph.md says, Adopt an
// image.
func TestAdoptedImage(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	ctx := testkit.Context(t)
	namespace := config.Cluster.RBD.RadosNamespace
	rbdTool(t, config, "create --size 16M "+testPool+"/"+namespace+"/static", "mv "+testPool+"/"+namespace+"/static VOLUME")
	e := open(t, config)
	wantKind(t, e.Delete(ctx, "mig_mons-x_image-y_706f6f6c"), "Delete of an in-tree volume", errs.Precondition)
	found := testkit.Value(e.pools[0].inspect(imageName(hash("v"))))(t)
	rbdTool(t, config, `image-meta set VOLUME cleat.volume {"image":"`+found.id+`","name":"v","content":"raw"}`)
	id := volume.ID(volumeID{pool: e.pools[0].id, hash: hash("v"), image: found.id}.String())
	if v := testkit.Value(e.Get(ctx, id))(t); v.Size != 16*mib || v.Name != "v" {
		t.Errorf("Get: %+v", v)
	}
	testkit.Must(t, e.DeleteSnapshot(ctx, takeSnap(t, e, "s", id).ID), e.Delete(ctx, id))
	deleteAll(t, e)
	wantNoImages(t, namespace)
}
