package genetlink

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFamily(t *testing.T) {
	if _, err := Family(t.Context(), "no-such-family"); !errors.Is(err, ErrNoFamily) || !strings.Contains(err.Error(), "no-such-family") {
		t.Errorf("a family that is not there: %v", err)
	}
	if id, err := Family(t.Context(), "nlctrl"); err != nil || id != unix.GENL_ID_CTRL {
		t.Errorf("the family of families is %d, %v", id, err)
	}
}

// All families at once: the kernel answers in many parts.
func TestDump(t *testing.T) {
	answers := testkit.Value(Ask(t.Context(), unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, netlink.Dump, func(*netlink.AttributeEncoder) {}))(t)
	names := map[string]bool{}
	for _, ad := range answers {
		for ad.Next() {
			if ad.Type() == unix.CTRL_ATTR_FAMILY_NAME {
				names[ad.String()] = true
			}
		}
		if err := ad.Err(); err != nil {
			t.Error(err)
		}
	}
	if !names["nlctrl"] || len(names) != len(answers) {
		t.Errorf("%d answers name %v", len(answers), names)
	}
}

func TestEndedContext(t *testing.T) {
	ctx := testkit.Canceled(t)
	testkit.WantError(t, "Family", testkit.Err(Family(ctx, "nlctrl")), context.Canceled)
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{1, 1, 0, 0, 6, 0, 1, 0, 16, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		answers, err := parse([]netlink.Message{{Data: data}})
		if (err == nil) != (len(answers) == 1) {
			t.Errorf("%d answers, %v", len(answers), err)
		}
		for _, ad := range answers {
			for ad.Next() {
				_ = ad.Uint16()
			}
		}
	})
}
