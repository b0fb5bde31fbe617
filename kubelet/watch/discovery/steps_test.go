package discovery

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Parent directories can be created one by one while locate looks for them;
// each is noticed at any moment.
func TestRootMadeStepByStep(t *testing.T) {
	r := makeRig(t, filepath.Join(t.TempDir(), "a", "b", "c", "d", "root"))
	testkit.Must(t, r.Start())
	r.run()
	for range 300 {
		testkit.Must(t, os.RemoveAll(filepath.Join(r.dir, "../../../..")), os.MkdirAll(r.dir, 0o750))
		socket(t, r.dir+"/s")
		r.wait("s")
	}
}
