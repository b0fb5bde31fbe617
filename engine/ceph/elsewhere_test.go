//go:build ceph

package ceph

import (
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// Ids do not name the namespace. What another one has is not missing, after a change
// of the configuration.
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	config, other := testConfig(t), testConfig(t)
	ctx := testkit.Context(t)
	namespace := config.Cluster.RBD.RadosNamespace
	e := open(t, config)
	v := createLocked(t, e, "v")
	s := takeSnap(t, e, "s", v.ID)
	g := takeGroup(t, e, "g", v)
	const uuid = "0c5b9f0e-8b7a-4d52-9d1e-3a1f2b3c4d5e"
	const record = csiVolumePrefix + uuid
	foreign := volume.ID(handle{cluster: "test", pool: e.pools[0].id, uuid: uuid}.String())
	testkit.Must(t, ioctx(t, namespace).SetOmap(record, map[string][]byte{csiImage: []byte("csi-vol")}))
	closeEngine(t, e)

	e = open(t, other)
	_, err := e.Get(ctx, v.ID)
	testkit.WantError(t, "Get", err, errs.Precondition, namespace)
	testkit.WantError(t, "Delete", e.Delete(ctx, v.ID), errs.Precondition, namespace)
	testkit.WantError(t, "DeleteSnapshot", e.DeleteSnapshot(ctx, s.ID), errs.Precondition, namespace)
	testkit.WantError(t, "DeleteGroup", e.DeleteGroup(ctx, g.ID), errs.Precondition, namespace)
	testkit.WantError(t, "Delete of a volume of ceph-csi", e.Delete(ctx, foreign), errs.Precondition, namespace)
	_, err = e.Create(ctx, request("copy", volume.Source{Snapshot: s.ID}))
	testkit.WantError(t, "Create of a copy", err, errs.Precondition, namespace)
	closeEngine(t, e)

	e = open(t, config)
	testkit.Must(t, e.DeleteGroup(ctx, g.ID), e.DeleteSnapshot(ctx, s.ID), e.Delete(ctx, v.ID), ioctx(t, namespace).Delete(record))
	deleteAll(t, e)
	wantNoImages(t, namespace)
	closeEngine(t, e)
	e = open(t, other)
	testkit.Must(t, e.DeleteGroup(ctx, g.ID), e.DeleteSnapshot(ctx, s.ID), e.Delete(ctx, v.ID))
}

// A Ceph user that is limited to its namespace cannot look into others.
func TestLimitedToANamespace(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	osd := "profile rbd pool=" + testPool + " namespace=" + config.Cluster.RBD.RadosNamespace
	key := testkit.Value(shared.User("limited", "mon", `profile rbd, allow command "osd blocklist"`, "mgr", "profile rbd pool="+testPool, "osd", osd))(t)
	config.Credentials = cephconf.Credentials{User: "limited", Key: key}
	e := open(t, config)
	v := create(t, e, "v", volume.Source{})
	testkit.Must(t, e.Delete(testkit.Context(t), v.ID))
	deleteAll(t, e)
	testkit.Must(t, e.Delete(testkit.Context(t), v.ID))
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}
