package enforce

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// A client with uses of volumes that were not seen stays fenced until a caller
// confirms its restart. Other clients do not wait for it.
func TestUnfenceOfAClientWithUnseenUses(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	for node, addr := range map[string]string{"node-a": "10.0.0.1", "node-b": "10.0.0.2"} {
		c := volume.Client{Node: node, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
		testkit.Value(r.ledger.Grant(ctx, volume.Grant{Volume: volume.ID("of-" + node), Client: c, Granted: time.Now().Add(-time.Hour)}))(t)
	}
	testkit.Value(r.ledger.RecordLook(ctx, volume.Look{Volumes: map[volume.ID]bool{"of-node-a": true}, Expiry: time.Second}))(t)
	a, b := req("o", "10.0.0.1/32"), req("o", "10.0.0.2/32")
	testkit.Must(t, r.Fence(ctx, a), r.Fence(ctx, b), r.ledger.Revoke(ctx, "of-node-a", "node-a", nil), r.Unfence(ctx, b))
	for _, force := range []bool{false, true} {
		a.Force = force
		testkit.WantError(t, "Unfence", r.Unfence(ctx, a), errs.Precondition, "node-a", "of-node-a", request.RestartedParameter)
	}
	if r.phases() != "10.0.0.1/32 o fenced" || r.held() != "10.0.0.1/32" {
		t.Errorf("after the refusal: %s, held %s", r.phases(), r.held())
	}
	r.restart()
	if s := testkit.Value(r.Status(ctx))(t); len(s.Unseen) != 1 {
		t.Errorf("status: %+v", s)
	}
	a.Restarted = true
	testkit.Must(t, r.Unfence(ctx, a))
	if s := testkit.Value(r.Status(ctx))(t); len(s.Unseen)+len(s.Fences) != 0 {
		t.Errorf("status: %+v", s)
	}
}

// The report of a restart ends the wait of a client, but only one that came after
// the record under the fence; without an answer of the API server it waits.
func TestUnfenceAfterAReportedRestart(t *testing.T) {
	var boots map[string]volume.Boot
	var unread error
	r := newRig(t, func(r *rig) {
		r.boots = func(context.Context) (map[string]volume.Boot, error) { return boots, unread }
	})
	ctx := t.Context()
	report := func(id string) map[string]volume.Boot {
		return map[string]volume.Boot{"node-a": {ID: id, Machine: "m"}}
	}
	c := volume.Client{Node: "node-a", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	granted := time.Now()
	testkit.Value(r.ledger.RecordLook(ctx, volume.Look{Begun: granted, All: true, Boots: report("1"), Expiry: time.Hour}))(t)
	testkit.Value(r.ledger.Grant(ctx, volume.Grant{Volume: "v", Client: c, Granted: granted}))(t)
	testkit.Value(r.ledger.RecordLook(ctx, volume.Look{Volumes: map[volume.ID]bool{"v": true}}))(t) // expired
	a := req("o", "10.0.0.1/32")
	boots = report("1")
	testkit.Must(t, r.Fence(ctx, a))
	testkit.WantError(t, "Unfence in the same boot", r.Unfence(ctx, a), errs.Precondition, "a reboot is noticed")
	boots, unread = report("2"), errors.New("no API server")
	testkit.WantError(t, "Unfence without reports", r.Unfence(ctx, a), errs.Precondition, "no API server")
	if s := testkit.Value(r.Status(ctx))(t); len(s.Unseen) != 1 || !strings.Contains(s.Unseen[0], "a reboot is noticed") {
		t.Errorf("status: %+v", s)
	}
	unread = nil
	r.restart()
	testkit.Must(t, r.Unfence(ctx, a))
	if s := testkit.Value(r.Status(ctx))(t); len(s.Unseen)+len(s.Fences) != 0 {
		t.Errorf("status: %+v", s)
	}
}
