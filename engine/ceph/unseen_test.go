//go:build ceph

package ceph

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// A device of a node was mapped, and left the list of watchers, while no
// controller ran. Its nonce is not known, so its node stays fenced until a caller
// confirms a restart: the device would write over the data of the next node.
func TestUnfenceAfterAnUnseenDevice(t *testing.T) {
	r := newFenceRig(t, "unseen", "mon", `profile rbd, allow command "osd blocklist"`, "mgr", "profile rbd pool="+testPool, "osd", "allow *")
	r.connectNode()
	t.Cleanup(func() { testkit.Value(shared.Command("osd", "blocklist", "clear"))(t) })
	r.recorder.Expiry = 100 * time.Millisecond
	ctx := testkit.Context(t)
	testkit.Must(t, r.recorder.Start(ctx))
	v := r.grant()

	// A client that writes to the image without a watch is such a device.
	client, d, err := r.client(v)
	testkit.Must(t, err, d.Close())
	io := testkit.Value(client.OpenIOContext(v.Locator.(access.RBD).Pool))(t)
	t.Cleanup(io.Destroy)
	io.SetNamespace(v.Locator.(access.RBD).Namespace)
	write := func() error { return io.Write("rbd_data.late", []byte("late"), 0) }
	testkit.Must(t, write())

	testkit.Eventually(t, "the next controller starts after the watch has expired", func() bool {
		testkit.Must(t, r.recorder.Start(ctx))
		return len(testkit.Value(r.ledger.Unseen(ctx, requestFor("198.51.100.7/32").Blocks))(t)) == 1
	})
	testkit.Must(t, r.recorder.Record(ctx), r.fence("198.51.100.7/32"))
	if instances, _ := r.instances(); len(instances) > 0 {
		t.Errorf("instances %q are recorded, the test needs one that is not", instances)
	}
	testkit.Must(t, r.ledger.Revoke(ctx, v.ID, "node", nil))
	testkit.Value(r.ledger.Grant(ctx, volume.Grant{Volume: v.ID, Client: volume.Client{Node: "next"}, Mode: "SINGLE_NODE_WRITER/block"}))(t)

	request := requestFor("198.51.100.7/32")
	err = r.enforcer.Unfence(ctx, request)
	wantKind(t, err, "Unfence", errs.Precondition)
	if err != nil && (!strings.Contains(err.Error(), string(v.ID)) || !strings.Contains(err.Error(), "node node")) {
		t.Errorf("%v names neither node nor volume", err)
	}
	r.wantFenced([]string{"198.51.100.7/32"}, "198.51.100.7:0/0")
	if err := write(); !is(err, syscall.ESHUTDOWN) {
		t.Errorf("a write of the device: %v", err)
	}
	request.Restarted = true
	testkit.Must(t, r.enforcer.Unfence(ctx, request))
	r.wantFenced(nil)
}
