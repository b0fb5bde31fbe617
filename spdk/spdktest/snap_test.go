package spdktest

import "testing"

// The removal of a bdev removes its namespace from SNAP's subsystem.
func TestRemovedBdevLeavesSubsystem(t *testing.T) {
	const nqn = "nqn.2022-10.io.nvda.nvme:dpf-m0-01234567"
	c := dial(t, startProcess(t, NewNetwork(nil), Config{SNAP: true}))
	c.must("bdev_malloc_create", with{"name": "m0", "num_blocks": 8, "block_size": 512}, nil)
	c.must("nvme_subsystem_create", with{"nqn": nqn}, nil)
	c.must("nvme_namespace_create", with{"nqn": nqn, "nsid": 1, "bdev_name": "m0"}, nil)
	c.must("bdev_malloc_delete", with{"name": "m0"}, nil)
	var shown []struct{ Namespaces []any }
	c.must("nvme_subsystem_list", nil, &shown)
	if len(shown) != 1 || len(shown[0].Namespaces) != 0 {
		t.Errorf("subsystems %+v", shown)
	}
}
