//go:build ceph

package ceph

import (
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// A controller that did not end cannot change anything once the next one
// serves, and does not keep its volumes in use. One that ended is not fenced.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	ctx := testkit.Context(t)
	first := open(t, config)
	address := testkit.Value(first.rados.GetAddrs())(t)
	closeEngine(t, first)
	old := open(t, config)
	if list := testkit.Value(shared.Command("osd", "blocklist", "ls"))(t); strings.Contains(list, address) {
		t.Errorf("%s, a controller that ended, is on the blocklist: %s", address, list)
	}
	v := create(t, old, "volume", volume.Source{})
	id, _ := parseVolumeID(v.ID)
	held := testkit.Value(rbd.OpenImage(old.pools[0].io, imageName(id.hash), rbd.NoSnapshot))(t)
	next := open(t, config)
	testkit.Must(t, next.Delete(ctx, v.ID))
	_, err := old.Create(ctx, request("late", volume.Source{}))
	wantKind(t, err, "Create by the controller that was replaced", errs.Unavailable)
	_ = held.Close() // the connection is dead
	deleteAll(t, next)
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}
