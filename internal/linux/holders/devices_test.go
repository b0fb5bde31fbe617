package holders_test

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
)

// The device number of a mounted btrfs is not that of its device.
func TestMountsOfDevice(t *testing.T) {
	for _, fs := range mkfs.Types() {
		v := mkfstest.New(t, fs, mkfs.MinSize(fs))
		users, found := holders.UsersOfDevice(t.Context(), v.Device.Major, v.Device.Minor)
		if !found || !strings.Contains(users, "a mount at "+v.Dir+" in") {
			t.Errorf("%s: users %q, found: %t; want the mount at %s", fs, users, found, v.Dir)
		}
	}
}
