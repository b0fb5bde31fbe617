//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rbd"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func images(t *testing.T, e *Engine) []string {
	t.Helper()
	return testkit.Value(rbd.GetImageNames(ioctx(t, e.pools[0].namespace)))(t)
}

// A deleted volume's image stays for as long as a snapshot or clone needs it.
func TestDeletedSources(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	ctx := testkit.Context(t)
	v := create(t, e, "source", volume.Source{})
	s := takeSnap(t, e, "snapshot", v.ID)
	testkit.Must(t, e.Delete(ctx, v.ID))
	id, _ := parseVolumeID(v.ID)
	if got := images(t, e); !cmp.Equal(got, []string{deletedName(id.image)}) {
		t.Errorf("images after the deletion of a volume with a snapshot: %q", got)
	}
	again := create(t, e, "source", volume.Source{})
	restored := create(t, e, "restored", volume.Source{Snapshot: s.ID})
	testkit.Must(t, e.DeleteSnapshot(ctx, s.ID))
	if _, err := e.Create(ctx, request("late", volume.Source{Snapshot: s.ID})); !errors.Is(err, errs.NotFound) {
		t.Errorf("a volume of a deleted snapshot: %v", err)
	}
	clone := create(t, e, "clone of restored", volume.Source{Volume: restored.ID})
	for _, x := range []volume.Volume{restored, again, clone} {
		testkit.Must(t, e.Delete(ctx, x.ID))
	}
	testkit.Eventually(t, "all images removed", func() bool { return len(images(t, e)) == 0 })
	wantNoImages(t, e.pools[0].namespace)
}

// An image of another program that has the name of a deleted volume is not removed.
func TestUnknownDeletedImage(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	name := deletedName("imported")
	testkit.Must(t, testkit.Err(rbd.Create(ioctx(t, e.pools[0].namespace), name, 1<<22, 22)))
	again, err := e.reap(remains{e.pools[0], "imported"})
	if testkit.Must(t, err); again {
		t.Error("the image would be tried again")
	}
	if got := images(t, e); !cmp.Equal(got, []string{name}) {
		t.Errorf("images %q, want %s", got, name)
	}
}

// A damaged record concerns its volume only.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	e := open(t, config)
	damaged, other := create(t, e, "damaged", volume.Source{}), create(t, e, "other", volume.Source{})
	image := testkit.Value(rbd.OpenImage(ioctx(t, config.Cluster.RBD.RadosNamespace), imageName(hash("damaged")), ""))(t)
	testkit.Must(t, image.SetMetadata(keyVolume, "{"), image.Close())
	closeEngine(t, e)
	e = open(t, config)
	wantDamaged(t, e, damaged.ID, request("damaged", volume.Source{}), other)
	if got := images(t, e); len(got) != 2 {
		t.Errorf("images: %q", got)
	}
}

// wantDamaged: an engine serves other, and leaves the volume with a damaged record
// as it is.
func wantDamaged(t *testing.T, e volume.Engine, id volume.ID, req volume.CreateRequest, other volume.Volume) {
	t.Helper()
	ctx := testkit.Context(t)
	if got := testkit.Value(e.List(ctx, "", 0))(t); len(got) != 1 || got[0].ID != other.ID {
		t.Errorf("List: %+v, want %s", got, other.ID)
	}
	for call, err := range map[string]error{"Get": testkit.Err(e.Get(ctx, id)), "Create": testkit.Err(e.Create(ctx, req)), "Delete": e.Delete(ctx, id)} {
		if !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", call, err)
		}
	}
}

// The manager flattens long chains; a chain that is too long is refused.
func TestDepth(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	ctx := testkit.Context(t)
	e.depths = depthLimits{soft: 100, hard: 3}
	v := create(t, e, "v0", volume.Source{})
	for n := 1; n <= 3; n++ {
		v = create(t, e, fmt.Sprintf("v%d", n), volume.Source{Volume: v.ID})
	}
	req := request("v4", volume.Source{Volume: v.ID})
	if _, err := e.Create(ctx, req); errs.KindOf(err) != errs.Busy {
		t.Errorf("a clone of depth 4: %v, want Busy", err)
	}
	testkit.EventuallyNil(t, "the chain is flattened", func() error {
		_, err := e.Create(ctx, req)
		return err
	})
	if n := depthOf(t, e, v); n != 0 {
		t.Errorf("the source has depth %d after its flattening", n)
	}

	e.depths = depthLimits{soft: 1, hard: 10}
	v5 := create(t, e, "v5", volume.Source{Volume: testkit.Value(e.Create(ctx, req))(t).ID})
	testkit.Eventually(t, "a volume of depth 2 is flattened", func() bool { return depthOf(t, e, v5) == 0 })
}

func depthOf(t *testing.T, e *Engine, v volume.Volume) int {
	t.Helper()
	return testkit.Value(e.depth(testkit.Value(e.find(v.ID))(t)))(t)
}

func TestNeverShrinks(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	v := create(t, e, "v", volume.Source{})
	d := openVolume(t, v)
	defer d.Close()
	testkit.Must(t, grow(d.Image, 8*mib))
	if size := testkit.Value(d.Size())(t); size != v.Size {
		t.Errorf("the image has %d bytes after a request for less", size)
	}
	_, err := e.Expand(testkit.Context(t), v.ID, volume.SizeRange{Required: mib, Limit: 8 * mib})
	wantKind(t, err, "Expand with a limit below the size", errs.OutOfRange)
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	good := testConfig(t)
	for name, c := range map[string]struct {
		change func(*Config)
		want   errs.Kind
	}{
		"a wrong key":      {func(c *Config) { c.Credentials.Key = shared.AdminKey() }, errs.Unauthenticated},
		"an unusable key":  {func(c *Config) { c.Credentials.Key = "none" }, errs.Unauthenticated},
		"a missing user":   {func(c *Config) { c.Credentials.User = "missing" }, errs.Unauthenticated},
		"a missing pool":   {func(c *Config) { c.Pools = []string{"nosuchpool"} }, errs.NotFound},
		"no pool":          {func(c *Config) { c.Pools = nil }, errs.Invalid},
		"a foreign pool":   {func(c *Config) { c.Pools = []string{testFS + "_meta"} }, errs.Denied},
		"no monitor there": {func(c *Config) { c.Cluster.Monitors = []string{"127.0.0.1:1"} }, errs.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := good
			c.change(&bad)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			e, err := Open(ctx, bad)
			wantKind(t, err, "Open with "+name, c.want)
			if err == nil {
				closeEngine(t, e)
			} else if strings.Contains(err.Error(), bad.Credentials.Key) {
				t.Errorf("the error has the key")
			}
		})
	}
}

func TestWatchers(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	v := create(t, e, "v", volume.Source{})
	ctx := testkit.Context(t)
	if w := testkit.Value(e.Watchers(ctx, v.ID))(t); len(w) != 0 {
		t.Errorf("watchers of an unused volume: %+v", w)
	}
	d := openVolume(t, v)
	defer d.Close()
	w := testkit.Value(e.Watchers(ctx, v.ID))(t)
	if len(w) != 1 || w[0].Client != shared.client.GetInstanceID() || w[0].Nonce == 0 || w[0].Addr != clusterAddress {
		t.Errorf("watchers of a volume that client.%d has open: %+v", shared.client.GetInstanceID(), w)
	}
	_, err := e.Watchers(ctx, "vol-1-x-y")
	wantKind(t, err, "watchers of no volume", errs.NotFound)
}

func TestState(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	ctx := testkit.Context(t)
	generation, entries, err := e.ReadState(ctx)
	if generation != 0 || len(entries) != 0 || err != nil {
		t.Fatalf("state that was never written: %d, %d entries, %v", generation, len(entries), err)
	}
	want := map[string][]byte{}
	for n := range 2*pageSize + 10 {
		want[fmt.Sprintf("key %d", n)] = fmt.Appendf(nil, "value %d", n)
	}
	testkit.Must(t, e.WriteState(ctx, 0, want, nil))
	for _, stale := range []uint64{0, 2, 256, 1 << 40} {
		if err := e.WriteState(ctx, stale, map[string][]byte{"key 1": nil}, []string{"key 2"}); !errors.Is(err, store.ErrChanged) {
			t.Errorf("WriteState of generation %d: %v, want ErrChanged", stale, err)
		}
	}
	testkit.Must(t, e.WriteState(ctx, 1, map[string][]byte{"key 1": {1}, "new": {}}, []string{"key 2", "missing"}))
	want["key 1"], want["new"] = []byte{1}, nil
	delete(want, "key 2")
	generation, entries, err = e.ReadState(ctx)
	testkit.Must(t, err)
	if diff := cmp.Diff(want, entries, cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" || generation != 2 {
		t.Errorf("generation %d; entries: -want +got\n%s", generation, diff)
	}
}

// The end of a creation sets the size, and then the record. Both can come after another
// call has opened the image, which then has the size of the request.
func TestSizeAtTheEndOfACreation(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	source := create(t, e, "source", volume.Source{})
	req := request("copy", volume.Source{Volume: source.ID})
	req.Size.Required = 2 * source.Size
	v := testkit.Value(e.Create(testkit.Context(t), req))(t)
	made := testkit.Value(e.find(v.ID))(t)
	testkit.Must(t, made.pool.open(made.name, func(r *rbd.Image) error {
		return errors.Join(r.RemoveMetadata(keyVolume), r.Resize(uint64(source.Size)))
	}))
	early := testkit.Value(rbd.OpenImageReadOnly(made.pool.io, made.name, rbd.NoSnapshot))(t)
	testkit.Must(t, made.pool.open(made.name, func(r *rbd.Image) error {
		return errors.Join(grow(r, req.Size.Required), r.SetMetadata(keyVolume, encode(made.record)))
	}))
	got := &image{pool: made.pool, name: made.name}
	testkit.Must(t, got.load(early), early.Close())
	if got.record == nil || got.size != req.Size.Required {
		t.Errorf("the image has the record %+v and %d bytes, want one and %d", got.record, got.size, req.Size.Required)
	}
}
