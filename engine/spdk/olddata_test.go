package spdk

import (
	"bytes"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// withoutUnmap restarts a target with a bdev that cannot unmap.
func (r *rig) withoutUnmap() {
	r.t.Helper()
	r.noUnmap = true
	testkit.Must(r.t, r.targets[0].Restart())
	r.offer(0)
}

// soil leaves the data of a deleted volume in the free clusters of the store.
func (r *rig) soil(e *Engine) {
	r.t.Helper()
	v := testkit.Value(e.Create(testkit.Context(r.t), withParameters("old", volume.Source{}, keyThin, "false", keyOldData, "true")))(r.t)
	r.write(v)
	testkit.Must(r.t, e.Delete(testkit.Context(r.t), v.ID))
}

func withParameters(name string, source volume.Source, pairs ...string) volume.CreateRequest {
	req := request(name, source)
	req.Parameters = map[string]string{}
	for pair := range slices.Chunk(pairs, 2) {
		req.Parameters[pair[0]] = pair[1]
	}
	return req
}

func (r *rig) disk(v volume.Volume) *spdktest.Disk {
	r.t.Helper()
	_, uuid, _ := parseID(string(v.ID))
	return testkit.Value(r.targets[0].OpenLvol(uuid))(r.t)
}

func (r *rig) read(v volume.Volume) []byte {
	r.t.Helper()
	d := r.disk(v)
	b := make([]byte, testkit.Value(d.Size())(r.t))
	testkit.Value(d.ReadAt(b, 0))(r.t)
	return b
}

// write fills a volume with data.
func (r *rig) write(v volume.Volume) {
	r.t.Helper()
	testkit.Value(r.disk(v).WriteAt(bytes.Repeat([]byte("secret! "), int(v.Size)/8), 0))(r.t)
}

// touch writes a block of zeros into each cluster, which allocates it.
func (r *rig) touch(v volume.Volume) {
	r.t.Helper()
	for offset := int64(0); offset < v.Size; offset += cluster {
		testkit.Value(r.disk(v).WriteAt(make([]byte, 4096), offset))(r.t)
	}
}

// showsZeros fails the test if a volume is not zero.
func (r *rig) showsZeros(what string, v volume.Volume) {
	r.t.Helper()
	r.touch(v)
	if b := r.read(v); bytes.Count(b, []byte{0}) < len(b) {
		r.t.Errorf("%s shows %d bytes of a deleted volume", what, len(b)-bytes.Count(b, []byte{0}))
	}
}

// open opens a volume, as a host does if the target is a real one.
func (r *rig) open(e *Engine, v volume.Volume) enginetest.Device {
	r.t.Helper()
	if r.network == nil {
		return r.openReal(e, v)
	}
	return r.disk(v)
}

// shown returns the blocks of a volume that are not zero. touched: a block of each
// cluster is written with zeros before.
func (r *rig) shown(e *Engine, v volume.Volume, touched bool) (dirty int) {
	r.t.Helper()
	d := r.open(e, v)
	defer func() { testkit.Must(r.t, d.Close()) }()
	b := make([]byte, cluster)
	for offset := int64(0); offset < v.Size; offset += cluster {
		if touched {
			testkit.Value(d.WriteAt(make([]byte, 4096), offset))(r.t)
		}
		testkit.Value(d.ReadAt(b, offset))(r.t)
		for block := range slices.Chunk(b, 4096) {
			if bytes.Count(block, []byte{0}) < len(block) {
				dirty++
			}
		}
	}
	return dirty
}

// testOldData reads new volumes of a store that is full of a deleted one's data
// and cannot unmap, while the target and its controller are killed.
func testOldData(t *testing.T, r *rig) {
	e, ctx := r.engine(), testkit.Context(t)
	old := withParameters("old", volume.Source{}, keyThin, "false", keyOldData, "true")
	old.Size.Required = 512 * mib
	v := testkit.Value(e.Create(ctx, old))(t)
	d := r.open(e, v)
	for secret, offset := bytes.Repeat([]byte("secret! "), cluster/8), int64(0); offset < v.Size; offset += cluster {
		testkit.Value(d.WriteAt(secret, offset))(t)
	}
	testkit.Must(t, d.Close(), e.Delete(ctx, v.ID))

	accepted := testkit.Value(e.Create(ctx, withParameters("accepted", volume.Source{}, keyOldData, "true")))(t)
	if dirty := r.shown(e, accepted, true); dirty != 16*255 {
		t.Errorf("a thin volume that accepts old data shows %d blocks of it, want all but those it has written", dirty)
	}
	wantKind(t, testkit.Err(e.Create(ctx, request("thin", volume.Source{}))), "a thin volume", errs.Precondition)
	testkit.Must(t, e.Delete(ctx, accepted.ID))

	restarts := 2
	if isReal() {
		restarts = 10
	}
	if r.targets != nil {
		r.targets[0].HoldInflate(100)
	}
	req := withParameters("v", volume.Source{}, keyThin, "false")
	req.Size.Required = 400 * mib
	progress := regexp.MustCompile(`zeros are being written to 419430400 bytes, of which (\d+) are done`)
	var done []string
	for range restarts {
		e = r.engine() // another controller
		e.zeroTime = 50 * time.Millisecond
		_, err := e.Create(ctx, req)
		if err == nil {
			break
		}
		wantKind(t, err, "a creation while zeros are written", errs.Unavailable)
		if found := progress.FindStringSubmatch(err.Error()); found != nil {
			done = append(done, found[1])
		}
		if all := testkit.Value(e.List(ctx, "", 0))(t); len(all) > 0 {
			t.Errorf("listed before it has its zeros: %+v", all)
		}
		if !isReal() || r.process != nil {
			r.kill()
		}
	}
	if r.targets != nil {
		r.targets[0].ReleaseInflate()
	}
	t.Logf("bytes done before kills: %v", done)
	e = r.engine()
	v = testkit.Value(e.Create(ctx, req))(t)
	if dirty := r.shown(e, v, false) + r.shown(e, v, true); dirty > 0 {
		t.Errorf("the new volume shows %d blocks of the deleted one", dirty)
	}
	s := takeSnap(t, e, "s", v.ID)
	small := request("copy", volume.Source{Snapshot: s.ID})
	small.Size.Required = v.Size
	c := testkit.Value(e.Create(ctx, small))(t)
	if dirty := r.shown(e, c, true); dirty > 0 {
		t.Errorf("a copy shows %d blocks of the deleted volume", dirty)
	}
	r.removeAll(e)
}

// Where the bdev of a store cannot unmap, a new volume shows nothing of a deleted
// one, or is refused.
func TestNewVolumesShowNoOldData(t *testing.T) {
	r := newRig(t, "one")
	e, ctx := r.engine(), testkit.Context(t)
	before := create(t, e, "before", volume.Source{})
	r.showsZeros("a thin volume of a store that unmaps", before)
	r.withoutUnmap()
	r.soil(e)
	before = create(t, e, "before", volume.Source{})

	_, err := e.Create(ctx, request("thin", volume.Source{}))
	wantKind(t, err, "a thin volume", errs.Precondition)
	if _, found, err := e.recordNamed(ctx, "thin"); found || err != nil {
		t.Errorf("the refused volume has a record: %t, %v", found, err)
	}
	thick := testkit.Value(e.Create(ctx, withParameters("thick", volume.Source{}, keyThin, "false")))(t)
	r.showsZeros("a thick volume", thick)
	r.soil(e)

	s := takeSnap(t, e, "of-thick", thick.ID)
	copied := create(t, e, "copy", volume.Source{Snapshot: s.ID})
	r.soil(e)
	r.showsZeros("a copy of a thick volume", copied)
	r.showsZeros("a thick volume with a snapshot", thick)
	larger := request("larger", volume.Source{Snapshot: s.ID})
	larger.Size.Required *= 2
	_, err = e.Create(ctx, larger)
	wantKind(t, err, "a copy that is larger than its source", errs.Precondition)
	_, err = e.Create(ctx, request("of-thin", volume.Source{Volume: create(t, e, "before", volume.Source{}).ID}))
	testkit.Must(t, err) // all its clusters were written
	r.soil(e)

	accepted := testkit.Value(e.Create(ctx, withParameters("accepted", volume.Source{}, keyOldData, "true")))(t)
	r.touch(accepted)
	if !bytes.Contains(r.read(accepted), []byte("secret!")) {
		t.Error("a volume that accepts old data shows none: the double does not keep it")
	}
	_, err = e.Create(ctx, request("of-accepted", volume.Source{Volume: accepted.ID}))
	if err != nil { // all its clusters are allocated
		t.Errorf("a copy of a volume with all clusters: %v", err)
	}
	sparse := testkit.Value(e.Create(ctx, withParameters("sparse", volume.Source{}, keyOldData, "true")))(t)
	_, err = e.Create(ctx, request("of-sparse", volume.Source{Volume: sparse.ID}))
	wantKind(t, err, "a copy of a thin volume", errs.Precondition)

	for v, want := range map[volume.ID]string{thick.ID: "", copied.ID: "", before.ID: "", sparse.ID: volume.ReasonOldDataVisible} {
		if got := reasons(t, testkit.Value(e.VolumeHealth(ctx, v))(t)); got != want {
			t.Errorf("volume %s has the conditions %q, want %q", v, got, want)
		}
	}
	if got := reasons(t, testkit.Value(e.StorageHealth(ctx))(t)); got != volume.ReasonOldDataVisible {
		t.Errorf("the storage has the conditions %q, want %s", got, volume.ReasonOldDataVisible)
	}
	if c := testkit.Value(e.Capacity(ctx, volume.CapacityQuery{}))(t); c.Available != 0 {
		t.Errorf("%d bytes are available for thin volumes, which are refused", c.Available)
	}
	if c := testkit.Value(e.Capacity(ctx, volume.CapacityQuery{Parameters: map[string]string{keyThin: "false"}}))(t); c.Available == 0 {
		t.Error("no bytes are available for thick volumes")
	}
	r.removeAll(e)
}

// The part by which a raw block volume grows is new.
func TestGrowthShowsNoOldData(t *testing.T) {
	r := newRig(t, "one")
	r.withoutUnmap()
	e, ctx := r.engine(), testkit.Context(t)
	v := testkit.Value(e.Create(ctx, withParameters("v", volume.Source{}, keyThin, "false")))(t)
	fs := withParameters("fs", volume.Source{}, keyThin, "false")
	fs.Content, fs.FSType = volume.Filesystem, "ext4"
	formatted := testkit.Value(e.Create(ctx, fs))(t)
	r.soil(e)
	_, err := e.Expand(ctx, v.ID, volume.SizeRange{Required: 32 * mib})
	wantKind(t, err, "growth of a block volume", errs.Precondition)
	r.showsZeros("the volume that did not grow", v)
	testkit.Value(e.Expand(ctx, v.ID, volume.SizeRange{Required: v.Size}))(t)
	testkit.Value(e.Expand(ctx, formatted.ID, volume.SizeRange{Required: 32 * mib}))(t)
}

// A target without the means refuses thick volumes too.
func TestEarlierReleaseCannotZero(t *testing.T) {
	r := newRig(t)
	r.noUnmap, r.flavour = true, spdktest.Fork // of 24.01
	r.start(0)
	_, err := r.engine().Create(testkit.Context(t), withParameters("v", volume.Source{}, keyThin, "false"))
	wantKind(t, err, "a thick volume", errs.Precondition)
}

// progress repeats the creation of a volume until it reports how far the target is.
func (r *rig) progress(e *Engine, req volume.CreateRequest, done string) {
	r.t.Helper()
	defer func(before time.Duration) { e.zeroTime = before }(e.zeroTime)
	e.zeroTime = 10 * time.Millisecond
	testkit.EventuallyNil(r.t, done, func() error {
		_, err := e.Create(testkit.Context(r.t), req)
		e.zeroTime *= 2 // enough to read the state, at last
		if err == nil || errs.KindOf(err) != errs.Unavailable {
			r.t.Fatalf("a creation that is not complete: %v", err)
		}
		if strings.Contains(err.Error(), done) {
			return nil
		}
		return err
	})
}

// A volume is complete when all its clusters have zeros. Calls wait for a limited
// time and say how far the target is; a target that has restarted is started
// again. Nothing is ever written to a volume that is complete.
func TestZerosAreWrittenInTheBackground(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, ctx := r.engine(), testkit.Context(t)
	r.soil(e)
	req := withParameters("v", volume.Source{}, keyThin, "false")
	r.targets[0].HoldInflate(5)
	r.progress(e, req, "zeros are being written to 16777216 bytes, of which 5242880 are done")
	if all := testkit.Value(e.List(ctx, "", 0))(t); len(all) > 0 {
		t.Errorf("listed before it has its zeros: %+v", all)
	}
	if subsystems := testkit.Value(r.client(0).Subsystems(ctx))(t); slices.ContainsFunc(subsystems, func(s rpc.Subsystem) bool { return strings.HasPrefix(s.NQN, nqnPrefix) }) {
		t.Error("exported before it has its zeros")
	}
	testkit.Must(t, r.targets[0].Restart())
	r.offer(0)
	r.targets[0].HoldInflate(9)
	e = r.engine() // another controller
	r.progress(e, req, "of which 9437184 are done")
	r.targets[0].ReleaseInflate()
	v := testkit.Value(e.Create(ctx, req))(t)
	r.showsZeros("the volume", v)
	if names := r.lvols(0); len(names) != 1 {
		t.Errorf("the target has the lvols %q, want that of the volume alone", names)
	}

	r.write(v)
	data := r.read(v)
	testkit.Value(r.engine().Create(ctx, req))(t)
	complete, _, err := e.recordNamed(ctx, "v")
	testkit.Must(t, err)
	b := &build{Engine: e, req: req, settings: testkit.Value(parseSettings(req.Parameters))(t)}
	for range 2 { // what a controller does that was suspended since
		bdev := testkit.Value(b.lvol(ctx, e.order[0], complete))(t)
		testkit.Must(t, r.client(0).StartInflate(ctx, bdev.uuid))
	}
	if !bytes.Equal(r.read(v), data) {
		t.Error("data of a complete volume was overwritten")
	}
	r.removeAll(e)
}

// wantKept restarts the target, which must not have lost the volumes.
func (r *rig) wantKept(e *Engine, volumes ...volume.Volume) {
	r.t.Helper()
	testkit.Must(r.t, r.targets[0].Restart())
	r.offer(0)
	for _, v := range volumes {
		if conditions := testkit.Value(e.VolumeHealth(testkit.Context(r.t), v.ID))(r.t); len(conditions) > 0 {
			r.t.Errorf("volume %s after a restart: %+v", v.Name, conditions)
		}
	}
}

// Zeros are written to one volume of a store at a time.
func TestZerosOfTwoVolumes(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, ctx := r.engine(), testkit.Context(t)
	r.targets[0].HoldInflate(5)
	created := make(chan volume.Volume, 2)
	for i, name := range []string{"v", "w"} {
		go func() {
			v, err := e.Create(ctx, withParameters(name, volume.Source{}, keyThin, "false"))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			created <- v
		}()
		testkit.Eventually(t, "zeros for "+name, func() bool { return r.targets[0].Counts()["bdev_lvol_resize"] == i+1 })
	}
	r.targets[0].ReleaseInflate()
	volumes := []volume.Volume{testkit.Receive(t, "a volume", created), testkit.Receive(t, "a volume", created)}
	r.wantKept(e, volumes...)
}

// A call ends while the target still writes zeros for it: those of the next volume
// wait for them, and a target that is killed afterwards has lost neither.
func TestZerosAfterAnEndedCall(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, ctx := r.engine(), testkit.Context(t)
	r.targets[0].HoldInflate(3)
	first := withParameters("v", volume.Source{}, keyThin, "false")
	r.progress(e, first, "3145728 are done")
	begun := r.targets[0].Counts()["bdev_lvol_inflate"]
	created := make(chan volume.Volume, 1)
	go func() {
		v, err := e.Create(ctx, withParameters("w", volume.Source{}, keyThin, "false"))
		if err != nil {
			t.Errorf("w: %v", err)
		}
		created <- v
	}()
	testkit.Eventually(t, "a request for zeros", func() bool { return r.targets[0].Counts()["bdev_lvol_inflate"] > begun })
	r.targets[0].ReleaseInflate()
	volumes := []volume.Volume{testkit.Receive(t, "a volume", created), testkit.Value(e.Create(ctx, first))(t)}
	r.wantKept(e, volumes...)
}

// Two releases use a store, whose states are their own: zeros are written to one volume
// at a time, also when the call of the other release has ended, or its controller.
func TestZerosOfTwoReleases(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, other, ctx := r.engine(), r.engine(r.otherRelease, func(c *Config) { c.Owner = "b" }), testkit.Context(t)
	r.targets[0].HoldInflate(3)
	first := withParameters("v", volume.Source{}, keyThin, "false")
	r.progress(e, first, "3145728 are done")
	second := withParameters("w", volume.Source{}, keyThin, "false")
	r.progress(other, second, "zeros are being written to another volume of the store")
	created := make(chan volume.Volume, 1)
	go func() {
		v, err := other.Create(ctx, second)
		if err != nil {
			t.Errorf("w: %v", err)
		}
		created <- v
	}()
	r.targets[0].ReleaseInflate()
	v := testkit.Value(r.engine().Create(ctx, first))(t) // another controller
	w := testkit.Receive(t, "a volume", created)
	r.wantKept(e, v)
	r.wantKept(other, w)
	testkit.Must(t, other.Delete(ctx, w.ID))
	r.removeAll(e)
}

// An earlier release removes the snapshot of a volume with zeros, and leaves what says
// that they are being written.
func TestZerosClaimIsLeft(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, ctx := r.engine(), testkit.Context(t)
	testkit.Value(r.client(0).CreateLvol(ctx, rpc.LvolCreate{StoreUUID: r.store(0).UUID, Name: zerosName, Thin: true}))(t)
	req := withParameters("v", volume.Source{}, keyThin, "false")
	r.targets[0].Inject(spdktest.Fault{Method: "bdev_lvol_delete", Times: 1, Error: &spdktest.Error{Code: -32603, Message: "Invalid argument"}})
	_, err := e.Create(ctx, req)
	wantKind(t, err, "while another controller deletes the lvol", errs.Unavailable)
	testkit.Value(e.Create(ctx, req))(t)
	r.removeAll(e)
}

// SPDK shows a thick lvol before the disk has it. A volume is not complete, and its
// snapshot stays, until then.
func TestZerosAreOnTheDisk(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, ctx := r.engine(), testkit.Context(t)
	r.soil(e)
	req := withParameters("v", volume.Source{}, keyThin, "false")
	r.targets[0].HoldInflate(16)
	r.progress(e, req, "of which 16777216 are done")
	testkit.Must(t, r.targets[0].Restart())
	r.targets[0].ReleaseInflate()
	r.offer(0)
	v := testkit.Value(e.Create(ctx, req))(t)
	r.wantKept(e, v)
	r.showsZeros("the volume", v)
	r.removeAll(e)
}

// An interrupted creation is removed by another request with its name, when the
// target has ended what it does.
func TestZerosAreDiscarded(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, ctx := r.engine(), testkit.Context(t)
	r.targets[0].HoldInflate(3)
	r.progress(e, withParameters("v", volume.Source{}, keyThin, "false"), "3145728 are done")
	other := withParameters("v", volume.Source{}, keyThin, "false")
	other.Size = volume.SizeRange{Required: 8 * mib, Limit: 8 * mib}
	e.zeroTime = 50 * time.Millisecond
	_, err := e.Create(ctx, other)
	wantKind(t, err, "another request while the target is busy", errs.Unavailable)
	e.zeroTime = time.Minute
	r.targets[0].ReleaseInflate()
	var v volume.Volume
	testkit.EventuallyNil(t, "the other request", func() (err error) {
		v, err = e.Create(ctx, other)
		return err
	})
	if v.Size != 8*mib {
		t.Errorf("it has %d bytes, want 8 MiB", v.Size)
	}
	r.withUnmap(false) // restarts the target, which has kept what it refused to delete
	r.removeAll(e)
}

// A creation that an earlier release has begun is not continued with its lvol.
func TestInterruptedCreationShowsNoOldData(t *testing.T) {
	for _, thin := range []bool{true, false} {
		r := newRig(t)
		r.noUnmap = true
		r.start(0)
		e, ctx := r.engine(), testkit.Context(t)
		r.soil(e)
		left := r.interrupt(e, "v", 16)
		req := request("v", volume.Source{})
		if !thin {
			req = withParameters("v", volume.Source{}, keyThin, "false")
			testkit.Must(t, r.client(0).DeleteLvol(ctx, alias(left.StoreName, "v")))
			testkit.Value(r.client(0).CreateLvol(ctx, rpc.LvolCreate{StoreUUID: left.Store, Name: "v", SizeMiB: 16}))(t)
			old := left
			old.Parameters = req.Parameters
			testkit.Must(t, e.put(ctx, &left, old))
		}
		v, err := e.Create(ctx, req)
		if thin {
			wantKind(t, err, "an interrupted thin volume", errs.Precondition)
			r.removeAll(e)
			continue
		}
		testkit.Must(t, err)
		r.showsZeros("the volume of an interrupted creation", v)
	}
}

// What does not fit is discarded, also if the space is taken meanwhile.
func TestZerosDoNotFit(t *testing.T) {
	r := newRig(t)
	r.noUnmap = true
	r.start(0)
	e, ctx := r.engine(), testkit.Context(t)
	r.targets[0].Inject(spdktest.Fault{Method: "bdev_lvol_resize", Times: 1, Error: &spdktest.Error{Code: -11, Message: "Resource temporarily unavailable"}})
	req := withParameters("v", volume.Source{}, keyThin, "false")
	_, err := e.Create(ctx, req)
	wantKind(t, err, "an interrupted creation", errs.Unavailable)
	r.targets[0].Fill(storeName, 3)
	_, err = e.Create(ctx, req)
	wantKind(t, err, "16 clusters in a store with 3", errs.Exhausted)
	if names := r.lvols(0); len(names) > 0 {
		t.Errorf("left are the lvols %q", names)
	}
}

// A bdev that is missing is no evidence of anything.
func TestUnreadBdev(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine()
	r.targets[0].Inject(spdktest.Fault{Method: "bdev_get_bdevs", Name: "disk", Error: &spdktest.Error{Code: -19, Message: "No such device"}})
	_, err := e.Create(testkit.Context(t), request("v", volume.Source{}))
	wantKind(t, err, "a volume in a store whose bdev is not shown", errs.Unavailable)
}

func (e *Engine) recordNamed(ctx context.Context, name string) (r record, found bool, err error) {
	err = e.config.Database.View(ctx, func(tx *store.Tx) error {
		r, found, err = volumes().Get(tx, name)
		return err
	})
	return r, found, err
}
