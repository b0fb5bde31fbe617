package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// A fence that is not in force everywhere is recorded, and not listed: its owner
// has to know of it to lift it.
func TestRecordedInEveryPhase(t *testing.T) {
	r := newRig(t)
	r.network.Fail("Held", errors.New("unreadable"))
	if err := r.Fence(t.Context(), req("a", "10.0.0.7/32")); err == nil {
		t.Fatal("the fence succeeded")
	}
	recorded := func(owner string) string {
		return fmt.Sprint(testkit.Value(r.Recorded(t.Context(), volume.FenceOwner{Digest: owner}))(t))
	}
	if listed := testkit.Value(r.List(t.Context(), nil))(t); len(listed) != 0 || recorded("a") != "[10.0.0.7/32]" || recorded("b") != "[]" {
		t.Errorf("listed %v, recorded of a %s, of b %s", listed, recorded("a"), recorded("b"))
	}
	r.network.Fail("Held", nil)
	testkit.Must(t, r.Unfence(t.Context(), req("a", "10.0.0.7/32")))
	if recorded("a") != "[]" {
		t.Errorf("recorded after it was lifted: %s", recorded("a"))
	}
}

func TestRecordedClients(t *testing.T) {
	r := newRig(t)
	for _, a := range []string{"10.0.0.7", "10.0.0.8"} {
		testkit.Must(t, r.ledger.RecordClient(t.Context(), volume.Client{Node: "n", Addrs: []netip.Addr{netip.MustParseAddr(a)}}))
	}
	all := testkit.Value(r.RecordedClients(t.Context()))(t)
	if len(all) != 1 || fmt.Sprint(all[0].Addrs, all[0].Former) != "[10.0.0.8] [10.0.0.7]" {
		t.Errorf("clients: %+v", all)
	}
}
