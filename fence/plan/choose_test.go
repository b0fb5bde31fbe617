package plan

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cleatproject/cleat/errs"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func prefixList(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	var list []netip.Prefix
	for _, text := range texts {
		p := testkit.Value(netip.ParsePrefix(text))(t)
		list = append(list, p)
	}
	return list
}

func TestUnconfirmedAndInPhase(t *testing.T) {
	owner, other := volume.FenceOwner{Digest: "a"}, volume.FenceOwner{Digest: "b"}
	blocks := prefixList(t, "10.0.0.1/32", "10.0.0.2/32", "10.0.0.3/32", "10.0.0.4/32", "10.0.0.5/32")
	now := []volume.Fence{
		{Block: blocks[0], Owner: owner, Phase: volume.Fencing},
		{Block: blocks[1], Owner: owner, Phase: volume.Fenced},
		{Block: blocks[2], Owner: owner, Phase: volume.Lifting},
		{Block: blocks[3], Owner: owner, Phase: volume.Lifted},
		{Block: blocks[4], Owner: other, Phase: volume.Fenced},
	}
	req := Request{Owner: owner, Blocks: blocks}
	same := cmpopts.EquateComparable(netip.Prefix{})
	want := prefixList(t, "10.0.0.1/32", "10.0.0.3/32", "10.0.0.4/32", "10.0.0.5/32")
	testkit.Diff(t, "unanswered", want, Unconfirmed(now, req), same)
	for phase, want := range map[volume.FencePhase][]netip.Prefix{
		volume.Fencing: blocks[:1], volume.Fenced: blocks[1:2], volume.Lifting: blocks[2:3], volume.Lifted: blocks[3:4],
	} {
		if diff := cmp.Diff(want, InPhase(now, req, phase), same); diff != "" {
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
	want := []Request{{Owner: a, Blocks: blocks[:1]}, {Owner: b, Blocks: blocks[:2]}}
	testkit.Diff(t, "Owners(now, blocks[:2])", want, Owners(now, blocks[:2]), cmpopts.EquateComparable(netip.Prefix{}))
	if got := Owners(now, prefixList(t, "10.0.0.0/25")); got != nil {
		t.Errorf("of a block without a record: %v", got)
	}
}

func TestDesired(t *testing.T) {
	for _, c := range []struct {
		name string
		now  []string
		want []netip.Prefix
	}{
		{"nothing", nil, nil},
		{"only what is to hold", []string{"a fencing 10.0.0.1/32", "a fenced 10.0.0.3/32", "a lifting 10.0.0.5/32", "a lifted 10.0.0.7/32"}, blocksOf("10.0.0.1/32", "10.0.0.3/32")},
		{"nested", []string{"a fenced 10.0.0.0/24", "b fenced 10.0.0.7/32", "a fenced 10.0.0.8/29"}, blocksOf("10.0.0.0/24")},
		{"twins", []string{"a fenced 10.0.0.0/25", "b fenced 10.0.0.128/25"}, blocksOf("10.0.0.0/24")},
		{"neighbours that are no block", []string{"a fenced 10.0.0.1/32", "a fenced 10.0.0.2/32"}, blocksOf("10.0.0.1/32", "10.0.0.2/32")},
		{"both families", []string{"a fenced 2001:db8::/64", "a fenced 10.0.0.0/8", "b fenced 2001:db8::1/128"}, blocksOf("10.0.0.0/8", "2001:db8::/64")},
		{"the ends", []string{"a fenced 255.255.255.255/32", "a fenced ::/128", "a fenced 0.0.0.0/32"}, blocksOf("0.0.0.0/32", "255.255.255.255/32", "::/128")},
		{"everything", []string{"a fenced 0.0.0.0/1", "b fencing 128.0.0.0/1", "a fenced ::/0"}, blocksOf("0.0.0.0/0", "::/0")},
	} {
		got, err := Desired(recorded(c.now...))
		if diff := cmp.Diff(c.want, got, compared); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
}

func TestReleased(t *testing.T) {
	before := recorded("a fenced 10.0.0.0/30", "b fenced 10.0.0.1/32", "a fenced 2001:db8::/128")
	after := recorded("a lifting 10.0.0.0/30", "b fenced 10.0.0.1/32", "a fenced 2001:db8::/128", "b fencing 10.1.0.0/16")
	got, err := Released(before, after)
	if diff := cmp.Diff(blocksOf("10.0.0.0/32", "10.0.0.2/31"), got, compared); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if got, err := Released(after, after); len(got) != 0 || err != nil {
		t.Errorf("without a change, %v is released, %v", got, err)
	}
}

// Without it, the rest would look like the whole fence.
func TestInvalidRecord(t *testing.T) {
	now := append(recorded("a fenced 10.0.0.0/8"), volume.Fence{Phase: volume.Fenced})
	if got, err := Desired(now); !errors.Is(err, errs.Invalid) {
		t.Errorf("wanted: %v, %v", got, err)
	}
	if got, err := Released(now, nil); !errors.Is(err, errs.Invalid) {
		t.Errorf("released: %v, %v", got, err)
	}
}
