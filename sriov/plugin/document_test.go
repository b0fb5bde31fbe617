package plugin_test

import (
	"slices"
	"testing"
)

// Two resources may have the same trouble: what is said names the resource.
func TestWarningsNameTheirResource(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.configure(`{"resourceList": [
		{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"drivers": ["iavf"]}]},
		{"resourceName": "dpdk", "resourcePrefix": "example.com", "selectors": [{"drivers": ["vfio-pci"]}]}]}`)
	r.start()
	r.eventually("the machine is looked at", func() bool { return !r.plugin.Document().Scanned.IsZero() })
	for _, want := range []string{"example.com/vf: no device is in it", "example.com/dpdk: no device is in it"} {
		if got := r.plugin.Document().Warnings; !slices.Contains(got, want) {
			t.Errorf("the warnings are %q, want %q", got, want)
		}
	}
}
