package netlinks

import (
	"context"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func families(flags netlink.HeaderFlags, attributes ...byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: unix.GENL_ID_CTRL, Flags: netlink.Request | flags},
		Data:   append([]byte{unix.CTRL_CMD_GETFAMILY, 1, 0, 0}, attributes...),
	}
}

func TestExecute(t *testing.T) {
	if all := testkit.Value(Execute(t.Context(), unix.NETLINK_GENERIC, families(netlink.Dump)))(t); len(all) < 2 {
		t.Errorf("%d families", len(all))
	}
	name := func(s string) []byte {
		return testkit.Value(netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.CTRL_ATTR_FAMILY_NAME, Data: append([]byte(s), 0)}}))(t)
	}
	if one := testkit.Value(Execute(t.Context(), unix.NETLINK_GENERIC, families(0, name("nlctrl")...)))(t); len(one) != 1 {
		t.Errorf("%d families are nlctrl", len(one))
	}
	testkit.WantError(t, "no family", testkit.Err(Execute(t.Context(), unix.NETLINK_GENERIC, families(0, name("none")...))), unix.ENOENT)
	testkit.WantError(t, "a bad name", testkit.Err(Execute(t.Context(), unix.NETLINK_GENERIC, families(0, name("a-name-of-more-than-fifteen-bytes")...))),
		unix.EINVAL, "Attribute failed policy validation")
}

func TestExecuteEnds(t *testing.T) {
	testkit.WantError(t, "canceled", testkit.Err(Execute(testkit.Canceled(t), unix.NETLINK_GENERIC, families(0))), context.Canceled)
	ctx, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	testkit.WantError(t, "late", testkit.Err(Execute(ctx, unix.NETLINK_GENERIC, families(0))), context.DeadlineExceeded)
}
