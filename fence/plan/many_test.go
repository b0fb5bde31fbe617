package plan

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// many requests every second address.
func many(blocks int) Request {
	req := Request{Owner: anna}
	for i := range blocks {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 15), byte(i >> 7), byte(i << 1)})
		req.Blocks = append(req.Blocks, netip.PrefixFrom(addr, 32))
	}
	return req
}

// The full life cycle of many fences.
func TestMany(t *testing.T) {
	req := many(10_000)
	now := Fence(nil, req, time.Unix(1, 0))
	desired, err := Desired(now)
	if len(now) != 10_000 || len(desired) != 10_000 || err != nil {
		t.Fatalf("%d records, %d blocks are wanted, %v", len(now), len(desired), err)
	}
	now = testkit.Value(Unfence(Confirm(now, req, time.Unix(2, 0)), req, time.Unix(3, 0)))(t)
	for _, f := range now {
		if f.Phase != volume.Lifting || !f.Since.Equal(time.Unix(3, 0)) {
			t.Fatalf("%+v", f)
		}
	}
	if now = Forget(now, req, time.Unix(4, 0)); len(now) != 0 {
		t.Errorf("%d records are left over", len(now))
	}
}
