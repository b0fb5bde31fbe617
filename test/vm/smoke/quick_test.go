package smoke

import (
	"strings"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/test/vm"
)

// A program that ends at once, and leaves its input unread, has its end told
// all the same.
func TestQuickPrograms(t *testing.T) {
	t.Parallel()
	g := vm.Boot(t, vm.Spec{Name: "quick"})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for n := range 50 {
				if out, err := g.Exec(t.Context(), vm.Command{Argv: []string{"echo", "done"}, Stdin: make([]byte, n<<10)}); err != nil || out != "done\n" {
					t.Errorf("a quick program with %d KiB of input: %q, %v", n, out, err)
				}
			}
		})
	}
	all.Wait()
	if err := g.Cut(); err != nil {
		t.Error(err)
	}
	if console := g.Console(); strings.HasPrefix(console, "no console") {
		t.Errorf("the console of a guest that said nothing, after its end: %q", console)
	}
}
