package smoke

import (
	"testing"

	"github.com/cleatproject/cleat/test/vm"
)

// A package's own tests run in a guest, with its testdata.
func TestGoTest(t *testing.T) {
	g := vm.Boot(t, vm.Spec{})
	vm.GoTest(t, g, "./test/vm/wire", "-test.run=TestBadRequests|Fuzz")
}
