//go:build ceph

package ceph

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// The tests in this file disturb the shared cluster. They are not parallel, so
// no other test runs beside them.

// within runs a call with a deadline, which it must keep.
func within(t *testing.T, timeout time.Duration, call func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	start := time.Now()
	err := call(ctx)
	if took := time.Since(start); took > timeout+30*time.Second {
		t.Errorf("a call with a deadline of %s took %s", timeout, took)
	}
	return err
}

func reasons(all []volume.Condition) string {
	var out []string
	for _, c := range all {
		out = append(out, string(c.Severity)+" "+c.Reason)
	}
	return strings.Join(out, ", ")
}

func TestUnreachableCluster(t *testing.T) {
	config := testConfig(t)
	e := open(t, config)
	v := create(t, e, "v", volume.Source{})
	req := request("during the outage", volume.Source{})

	restore := sync.OnceFunc(func() { testkit.Must(t, shared.StartOSD()) })
	defer restore()
	testkit.Must(t, shared.StopOSD())
	err := within(t, time.Second, func(ctx context.Context) error { _, err := e.Create(ctx, req); return err })
	wantKind(t, err, "Create without OSD", errs.Unavailable)
	err = within(t, time.Second, func(ctx context.Context) error { _, err := e.Get(ctx, v.ID); return err })
	wantKind(t, err, "Get without OSD", errs.Unavailable)
	testkit.EventuallyNil(t, "health reports it", func() error {
		all, err := e.VolumeHealth(testkit.Context(t), v.ID)
		if got := reasons(all); err != nil || !strings.Contains(got, "INACCESSIBLE") {
			return errs.Errorf(errs.Unavailable, "health %s, %w", got, err)
		}
		return nil
	})
	restore()
	testkit.EventuallyNil(t, "Create continues", func() error { _, err := e.Create(testkit.Context(t), req); return err })
	if all := testkit.Value(e.List(testkit.Context(t), "", 0))(t); len(all) != 2 {
		t.Errorf("after the outage there are %+v", all)
	}

	restoreMon := sync.OnceFunc(func() { testkit.Must(t, shared.StartMon()) })
	defer restoreMon()
	shared.StopMon()
	all, err := e.StorageHealth(testkit.Context(t))
	if got := reasons(all); err != nil || got != "INACCESSIBLE "+volume.ReasonClusterUnreachable {
		t.Errorf("health without monitor: %s, %v", got, err)
	}
	err = within(t, time.Second, func(ctx context.Context) error {
		other, err := Open(ctx, config)
		if err == nil {
			closeEngine(t, other)
		}
		return err
	})
	wantKind(t, err, "Open without monitor", errs.Unavailable)
	restoreMon()
	testkit.EventuallyNil(t, "healthy again", func() error {
		all, err := e.StorageHealth(testkit.Context(t))
		if err == nil && len(all) > 0 {
			err = errs.Errorf(errs.Unavailable, "%s", reasons(all))
		}
		return err
	})
}

func TestFullPool(t *testing.T) {
	config := testConfig(t)
	e := open(t, config)
	v := create(t, e, "v", volume.Source{})
	d := openVolume(t, v)
	testkit.Value(d.WriteAt(make([]byte, 8*mib), 0))(t)
	testkit.Must(t, d.Sync(), d.Close())
	spare := create(t, e, "spare", volume.Source{})
	quota := func(bytes string) {
		t.Helper()
		testkit.Value(shared.Command("osd", "pool", "set-quota", testPool, "max_bytes", bytes))(t)
	}
	quota("1")
	defer quota("0")
	testkit.EventuallyNil(t, "health reports it", func() error {
		all, err := e.VolumeHealth(testkit.Context(t), v.ID)
		if got := reasons(all); err != nil || got != "INACCESSIBLE "+volume.ReasonPoolFull {
			return errs.Errorf(errs.Exhausted, "health %s, %w", got, err)
		}
		return nil
	})
	_, err := e.Create(testkit.Context(t), request("one more", volume.Source{}))
	wantKind(t, err, "Create in a full pool", errs.Exhausted)
	c := testkit.Value(e.Capacity(testkit.Context(t), volume.CapacityQuery{}))(t)
	if c.Available != 0 {
		t.Errorf("a full pool has %+v", c)
	}
	testkit.Must(t, e.Delete(testkit.Context(t), spare.ID), e.Delete(testkit.Context(t), v.ID))
	testkit.EventuallyNil(t, "images of a full pool removed", func() error {
		if left := images(t, e); len(left) > 0 {
			return errs.Errorf(errs.Precondition, "left are %q", left)
		}
		return nil
	})
	quota("0")
	testkit.EventuallyNil(t, "the pool can be used", func() error {
		_, err := e.Create(testkit.Context(t), request("one more", volume.Source{}))
		return err
	})
}

// Data in another pool than the image is as full as that pool.
func TestFullDataPool(t *testing.T) {
	const data = "full-data"
	testkit.Must(t, shared.CreatePool(data))
	osd := "profile rbd pool=" + testPool + ", profile rbd pool=" + data
	key := testkit.Value(shared.User("twopools", "mon", "profile rbd", "mgr", "profile rbd", "osd", osd))(t)
	config := testConfig(t)
	config.Credentials = cephconf.Credentials{User: "twopools", Key: key}
	e := open(t, config)
	req := request("v", volume.Source{})
	req.Parameters = map[string]string{keyDataPool: data}
	v, other := testkit.Value(e.Create(testkit.Context(t), req))(t), create(t, e, "other", volume.Source{})
	clone := create(t, e, "clone", volume.Source{Snapshot: takeSnap(t, e, "s", v.ID).ID})
	d := openVolume(t, v)
	testkit.Value(d.WriteAt(make([]byte, 8*mib), 0))(t)
	testkit.Must(t, d.Sync(), d.Close())
	testkit.Value(shared.Command("osd", "pool", "set-quota", data, "max_bytes", "1"))(t)
	defer func() { testkit.Value(shared.Command("osd", "pool", "set-quota", data, "max_bytes", "0"))(t) }()
	testkit.EventuallyNil(t, "the monitors report it", func() error {
		out, err := shared.Command("health", "detail")
		if err == nil && !strings.Contains(out, "pool '"+data+"' is full") {
			err = errs.Errorf(errs.Unavailable, "health %s", out)
		}
		return err
	})
	for id, want := range map[volume.ID]string{v.ID: "INACCESSIBLE " + volume.ReasonPoolFull, other.ID: "", clone.ID: ""} {
		if got := reasons(testkit.Value(e.VolumeHealth(testkit.Context(t), id))(t)); got != want {
			t.Errorf("health of volume %s: %q, want %q", id, got, want)
		}
	}
	_, parents, err := e.morePools(testkit.Context(t), clone)
	if testkit.Must(t, err); !slices.ContainsFunc(parents, func(p poolRef) bool { return p.name == data }) {
		t.Errorf("a clone reads from the pools %v, want %s among them", parents, data)
	}
	deleteAll(t, e)
}

// A clone needs the pools from which it reads, but no space there.
func TestHealthOfParents(t *testing.T) {
	own, parent := []poolRef{{"own", 1}}, poolRef{"parent", 2}
	for name, c := range map[string]struct{ report, want string }{
		"damaged": {`"PG_DAMAGED":{"detail":[{"message":"pg 2.1 is inconsistent"}]}`, "DATA_LOSS " + volume.ReasonDataDamaged},
		"another": {`"PG_DAMAGED":{"detail":[{"message":"pg 3.1 is inconsistent"}]}`, ""},
		"full":    {`"POOL_FULL":{"detail":[{"message":"pool 'parent' is full"}]}`, ""},
		"own":     {`"POOL_FULL":{"detail":[{"message":"pool 'own' is full"}]}`, "INACCESSIBLE " + volume.ReasonPoolFull},
	} {
		h := testkit.Value(parseHealth([]byte(`{"checks":{` + c.report + `}}`)))(t)
		if got := reasons(h.conditions(own, "", parent)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// A file system needs the pool of its metadata as well as those of its data.
func TestHealthOfMetadataPool(t *testing.T) {
	e := &FS{Connection: &Connection{pools: []*pool{{name: "meta", id: 3}}}, data: []poolRef{{"data", 4}}}
	h := testkit.Value(parseHealth([]byte(`{"checks":{"PG_DAMAGED":{"summary":{"message":"Possible data damage"},"detail":[{"message":"pg 3.1 is inconsistent"}]}}}`)))(t)
	if got := reasons(h.conditions(e.allPools(), "files")); got != "DATA_LOSS "+volume.ReasonDataDamaged {
		t.Errorf("health with a damaged metadata pool: %q", got)
	}
}

// Without metadata servers calls end at their deadlines, and go on later.
func TestFSUnreachableMetadata(t *testing.T) {
	e := openFS(t, fsConfig(t))
	v := makeFS(t, e, fsRequest("v", volume.Source{}))
	req := fsRequest("during the outage", volume.Source{})
	restore := sync.OnceFunc(func() { testkit.Must(t, shared.StartMDS()) })
	defer restore()
	// TestFence expects no entries; the monitors add the server that was killed.
	t.Cleanup(func() { testkit.Value(shared.Command("osd", "blocklist", "clear"))(t) })
	testkit.Must(t, shared.StopMDS())
	testkit.EventuallyNil(t, "health reports it", func() error {
		all, err := e.VolumeHealth(testkit.Context(t), v.ID)
		if !strings.Contains(reasons(all), "INACCESSIBLE "+volume.ReasonMDSDown) {
			return errs.Errorf(errs.Unavailable, "health %+v, %w", all, err)
		}
		return nil
	})
	err := within(t, time.Second, func(ctx context.Context) error { _, err := e.Create(ctx, req); return err })
	wantKind(t, err, "Create without metadata server", errs.Unavailable)
	if all := testkit.Value(e.List(testkit.Context(t), "", 0))(t); len(all) != 1 {
		t.Errorf("List without metadata server: %+v", all)
	}
	restore()
	testkit.EventuallyNil(t, "Create continues", func() error { _, err := e.Create(testkit.Context(t), req); return err })
	if got := testkit.Value(e.Get(testkit.Context(t), v.ID))(t); got.ID != v.ID {
		t.Errorf("Get after the outage: %+v", got)
	}
	testkit.Eventually(t, "healthy again", func() bool {
		all, err := e.VolumeHealth(testkit.Context(t), v.ID)
		return err == nil && len(all) == 0
	})
}
