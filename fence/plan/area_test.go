package plan

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWanted(t *testing.T) {
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
		if diff := cmp.Diff(c.want, Wanted(recorded(c.now...)), compared); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestReleased(t *testing.T) {
	before := recorded("a fenced 10.0.0.0/30", "b fenced 10.0.0.1/32", "a fenced 2001:db8::/128")
	after := recorded("a lifting 10.0.0.0/30", "b fenced 10.0.0.1/32", "a fenced 2001:db8::/128", "b fencing 10.1.0.0/16")
	if diff := cmp.Diff(blocksOf("10.0.0.0/32", "10.0.0.2/31"), Released(before, after), compared); diff != "" {
		t.Error(diff)
	}
	if got := Released(after, after); len(got) != 0 {
		t.Errorf("nothing changed, and %v is released", got)
	}
}

func TestMissing(t *testing.T) {
	held, wanted := blocksOf("10.0.0.0/25", "10.9.0.0/16"), blocksOf("10.0.0.0/24", "::1/128")
	if diff := cmp.Diff(blocksOf("10.0.0.128/25", "::1/128"), Missing(held, wanted), compared); diff != "" {
		t.Error(diff)
	}
	if got := Missing(nil, nil); len(got) != 0 {
		t.Error(got)
	}
}

// A record without a block must not be passed over: the rest would be taken
// for the whole fence.
func TestBrokenBlockIsNotLeftOut(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a set with a hole was returned")
		}
	}()
	Merge([]netip.Prefix{{}})
}
