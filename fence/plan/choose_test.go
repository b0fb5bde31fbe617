package plan

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/volume"
)

func prefixList(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	var list []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
	return list
}

func TestUnansweredAndInPhase(t *testing.T) {
	owner, other := volume.FenceOwner{Digest: "a"}, volume.FenceOwner{Digest: "b"}
	blocks := prefixList(t, "10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.4/32", "10.0.0.5/32")
	now := []volume.Fence{
		{Block: blocks[0], Owner: owner, Phase: volume.Fencing},
		{Block: blocks[1], Owner: owner, Phase: volume.Fenced},
		{Block: blocks[2], Owner: owner, Phase: volume.Lifting},
		{Block: blocks[3], Owner: owner, Phase: volume.Lifted},
		{Block: blocks[4], Owner: other, Phase: volume.Fenced},
	}
	ask := Ask{Owner: owner, Blocks: blocks}
	same := cmpopts.EquateComparable(netip.Prefix{})
	want := prefixList(t, "10.0.0.1/32", "10.0.0.3/32", "10.0.0.4/32", "10.0.0.5/32")
	if diff := cmp.Diff(want, Unanswered(now, ask), same); diff != "" {
		t.Errorf("unanswered: %s", diff)
	}
	for phase, want := range map[volume.FencePhase][]netip.Prefix{
		volume.Fencing: blocks[:1], volume.Fenced: blocks[1:2], volume.Lifting: blocks[2:3], volume.Lifted: blocks[3:4],
	} {
		if diff := cmp.Diff(want, InPhase(now, ask, phase), same); diff != "" {
			t.Errorf("%s: %s", phase, diff)
		}
	}
}

func TestOwners(t *testing.T) {
	a, b := volume.FenceOwner{Digest: "a"}, volume.FenceOwner{Digest: "b", Keys: []string{"k"}}
	blocks := prefixList(t, "10.0.0.0/24", "10.0.0.1/32", "10.0.0.2/32")
	now := []volume.Fence{
		{Block: blocks[0], Owner: a}, {Block: blocks[0], Owner: b}, {Block: blocks[1], Owner: b}, {Block: blocks[2], Owner: b},
	}
	want := []Ask{{Owner: a, Blocks: blocks[:1]}, {Owner: b, Blocks: blocks[:2]}}
	if diff := cmp.Diff(want, Owners(now, blocks[:2]), cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
		t.Error(diff)
	}
	if got := Owners(now, prefixList(t, "10.0.0.0/25")); got != nil {
		t.Errorf("of a block that nobody has just so: %v", got)
	}
}
