package features

import (
	"os"
	"testing"
)

// An entry whose feature is present on the test machines skips tests for no
// reason.
func TestEveryEntryIsStillNeeded(t *testing.T) {
	for _, f := range All() {
		present, err := f.Present()
		if err != nil {
			t.Errorf("%s: probe: %v", f.Name, err)
		}
		if f.Reason == "" || f.Proved == "" {
			t.Errorf("%s: an entry names its reason and where else it is proved", f.Name)
		}
		if !present || f.OfCheckout {
			continue
		}
		if os.Getenv("CI") != "" {
			t.Errorf("%s is present on this machine: remove its entry, so that its tests must run", f.Name)
		} else {
			t.Logf("%s is present on this machine: its tests run", f.Name)
		}
	}
}
