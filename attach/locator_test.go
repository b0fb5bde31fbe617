package attach_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// TestLocatorsWithLists: the locator of a request is compared with the
// volume's own by what they say; == would panic.
func TestLocatorsWithLists(t *testing.T) {
	own := access.NVMe{
		Transport: "tcp", NQN: "nqn.2016-06.io.spdk:a",
		Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420"), netip.MustParseAddrPort("192.0.2.2:4420")},
	}
	n := newNode(t, func(n *node) {
		n.config.Locate = func(context.Context, volume.ID) (access.Access, error) { return own, nil }
	})
	r := n.staging("vol-remote", "")
	other := own
	other.NQN += "b"
	r.Locator = other
	n.refused(n.Stage(t.Context(), r), errs.Invalid, "not that of volume")
	// Its own gets past the comparison, as far as a node without NVMe goes.
	r.Locator = own
	n.refused(n.Stage(t.Context(), r), errs.Unsupported, "nvme")
}
