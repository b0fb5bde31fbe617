package fence

import (
	"testing"

	"github.com/cleatproject/cleat/test/vm"
)

// TestRooms: what meets the kernel's sockets meets those of Debian 12 as well,
// which destroys them somewhat differently.
func TestRooms(t *testing.T) {
	g := vm.Boot(t, vm.Spec{
		Name: "rooms", Tools: []string{"ip", "nft", "setpriv", "sleep"},
		Modules: []string{"nf_tables", "tcp_diag"},
	})
	for _, room := range []string{"./internal/linux/sockdiag", "./internal/linux/sockfd", "./fence/sock"} {
		t.Run(room, func(t *testing.T) { vm.GoTest(t, g, room) })
	}
}
