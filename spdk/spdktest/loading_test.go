package spdktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// After a restart the store is listed before its lvols exist, as measured: they
// are neither found nor deleted, and the end of the examination is waited for.
func TestLoading(t *testing.T) {
	n := NewNetwork(nil)
	disk := filepath.Join(testkit.Dir(t), "disk")
	testkit.Must(t, os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 64<<20))
	p := startProcess(t, n, Config{})
	aio := with{"name": "disk", "filename": disk, "block_size": 4096}
	c := dial(t, p)
	var v, lost string
	c.must("bdev_aio_create", aio, nil)
	c.must("bdev_lvol_create_lvstore", with{"bdev_name": "disk", "lvs_name": "lvs0", "cluster_sz": 1 << 20}, nil)
	c.must("bdev_lvol_create", with{"lvs_name": "lvs0", "lvol_name": "v", "size_in_mib": 1}, &v)
	c.must("bdev_lvol_create", with{"lvs_name": "lvs0", "lvol_name": "lost", "size_in_mib": 1}, &lost)
	if !p.Lose(lost) {
		t.Error("the lvol to lose does not exist")
	}
	p.HoldExamine()
	testkit.Must(t, p.Restart())

	c = dial(t, p)
	var listed []any
	c.must("bdev_wait_for_examine", nil, nil) // nothing to examine yet
	c.must("bdev_aio_create", aio, nil)
	if c.must("bdev_lvol_get_lvstores", with{"lvs_name": "lvs0"}, &listed); len(listed) != 1 {
		t.Errorf("stores %v", listed)
	}
	if c.must("bdev_lvol_get_lvols", with{"lvs_name": "lvs0"}, &listed); len(listed) != 0 {
		t.Errorf("lvols %v are listed before they are opened", listed)
	}
	for _, name := range []string{v, "lvs0/v"} {
		c.refused(-eNODEV, "bdev_get_bdevs", with{"name": name})
		c.refused(-eNODEV, "bdev_lvol_snapshot", with{"lvol_name": name, "snapshot_name": "s"})
		c.refused(-ePERM, "bdev_lvol_delete", with{"name": name})
	}
	examined := dial(t, p)
	examined.send(`{"jsonrpc":"2.0","id":1,"method":"bdev_wait_for_examine"}`)
	testkit.Eventually(t, "a call that waits", func() bool { return p.Counts()["bdev_wait_for_examine"] == 2 })
	p.ReleaseExamine()
	testkit.Value(examined.receive())(t)
	c.must("bdev_get_bdevs", with{"name": v}, nil)
	c.refused(-eNODEV, "bdev_get_bdevs", with{"name": lost})
	c.refused(-eNODEV, "bdev_lvol_delete", with{"name": lost})
	if c.must("bdev_lvol_get_lvols", with{"lvs_name": "lvs0"}, &listed); len(listed) != 1 {
		t.Errorf("lvols %v, want one", listed)
	}
}
