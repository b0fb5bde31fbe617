package spdk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// A target that is missing from the configuration says nothing about its volumes:
// they are deleted and unpublished only when it is declared as retired.
func TestTargetIsNotConfigured(t *testing.T) {
	r := newRig(t, "one", "two")
	all := r.engine()
	ctx := testkit.Context(t)
	req := request("v", volume.Source{})
	req.Parameters = map[string]string{keyTarget: targetName(0)}
	v := testkit.Value(all.Create(ctx, req))(t)
	s := takeSnap(t, all, "s", v.ID)
	publish(t, all, v.ID, node("n1", "192.0.2.1"))
	left := r.interrupt(all, "interrupted", 16)
	testkit.Must(t, all.compare(ctx, all.order[1]))
	unrecorded := formatID(targetName(0), "00000000-0000-4000-8000-000000000000")

	without := func(c *Config) { c.Targets = c.Targets[1:] }
	e := r.engine(without)
	for what, err := range map[string]error{
		"delete":                       e.Delete(ctx, v.ID),
		"unpublish":                    revoke(ctx, e, v.ID, "n1"),
		"publish":                      e.Enforce(ctx, v.ID),
		"delete the snapshot":          e.DeleteSnapshot(ctx, s.ID),
		"delete an unrecorded one":     e.Delete(ctx, volume.ID(unrecorded)),
		"unpublish an unrecorded one":  revoke(ctx, e, volume.ID(unrecorded), "n1"),
		"get an unrecorded one":        testkit.Err(e.Get(ctx, volume.ID(unrecorded))),
		"delete an unrecorded one (s)": e.DeleteSnapshot(ctx, volume.SnapshotID(unrecorded)),
		"restore":                      testkit.Err(e.Create(ctx, request("copy", volume.Source{Snapshot: s.ID}))),
	} {
		if wantKind(t, err, what, errs.Precondition); !strings.Contains(errors.Join(err, errors.New("")).Error(), targetName(0)) {
			t.Errorf("%s: %v; want the name of the target", what, err)
		}
	}
	wantKind(t, testkit.Err(e.Create(ctx, request(left.Name, volume.Source{}))), "continue a creation there", errs.Unavailable)
	wantKind(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")), "fence", errs.Unavailable)

	r.targets[0].Kill()
	e = r.engine(without, func(c *Config) { c.Retired = []string{targetName(0)} })
	testkit.Must(t, enforcer(t, e).Fence(ctx, block("192.0.2.1/32")))
	wantKind(t, e.Enforce(ctx, v.ID), "publish a volume of a retired target", errs.Precondition)
	if c := create(t, e, left.Name, volume.Source{}); !strings.HasPrefix(string(c.ID), targetName(1)) {
		t.Errorf("the interrupted creation is continued as %s", c.ID)
	}
	testkit.Must(t, revoke(ctx, e, v.ID, "n1"), e.Delete(ctx, v.ID), e.DeleteSnapshot(ctx, s.ID),
		e.Delete(ctx, volume.ID(unrecorded)), revoke(ctx, e, volume.ID(unrecorded), "n1"))
	if all := testkit.Value(e.records(ctx))(t); len(all) != 1 {
		t.Errorf("%d records are left, want that of target two", len(all))
	}
}

// The configuration names no store, and the target has not all that have recorded
// volumes: an lvol that no record has can be in the missing one.
func TestMissingStoreWithoutConfiguration(t *testing.T) {
	r := newRig(t, "one")
	e := r.engine(func(c *Config) { c.Targets[0].Stores = nil })
	ctx := testkit.Context(t)
	c := r.client(0)
	create(t, e, "v", volume.Source{})
	uuid := testkit.Value(c.CreateLvol(ctx, rpc.LvolCreate{StoreUUID: r.store(0).UUID, Name: "pvc-1", SizeMiB: 16, Thin: true}))(t)
	snap := testkit.Value(c.SnapshotLvol(ctx, uuid, "snapshot-1"))(t)
	file := filepath.Join(testkit.Dir(t), "other")
	testkit.Must(t, os.WriteFile(file, nil, 0o600), os.Truncate(file, 64*mib))
	other := rpc.AIO{Name: "other", Filename: file, BlockSize: 4096, Fallocate: true}
	testkit.Must(t, c.CreateAIO(ctx, other),
		c.Call(ctx, "bdev_lvol_create_lvstore", map[string]any{"bdev_name": "other", "lvs_name": "lvs1", "cluster_sz": cluster}, nil),
		r.targets[0].Restart(), c.CreateAIO(ctx, other))
	id, snapshot := volumeID(targetName(0), uuid), volume.SnapshotID(formatID(targetName(0), snap))
	for what, err := range map[string]error{
		"get": testkit.Err(e.Get(ctx, id)), "delete": e.Delete(ctx, id), "unpublish": revoke(ctx, e, id, "n1"),
		"get the snapshot": testkit.Err(e.GetSnapshot(ctx, snapshot)), "delete the snapshot": e.DeleteSnapshot(ctx, snapshot),
	} {
		wantKind(t, err, what, errs.Unavailable)
	}
	r.offer(0)
	testkit.Must(t, revoke(ctx, e, id, "n1"), e.DeleteSnapshot(ctx, snapshot), e.Delete(ctx, id), e.Delete(ctx, id))
	if names := r.lvols(0); len(names) != 1 {
		t.Errorf("the lvols %q are left, want that of v", names)
	}
}
