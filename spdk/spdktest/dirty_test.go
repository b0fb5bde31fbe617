package spdktest

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// shown returns how many clusters of an lvol are not zero.
func shown(t *testing.T, p *Process, name string) (dirty int) {
	t.Helper()
	d := testkit.Value(p.OpenLvol(name))(t)
	for offset := int64(0); offset < testkit.Value(d.Size())(t); offset += testCluster {
		b := make([]byte, testCluster)
		testkit.Value(d.ReadAt(b, offset))(t)
		if bytes.Count(b, []byte{0}) < len(b) {
			dirty++
		}
	}
	return dirty
}

// What a new lvol shows of a deleted one, as measured with the blobstore of SPDK
// 26.09 on a device without unmap: clusters are cleared when they are freed, not
// when they are allocated, unless they are copied from a parent. A parent that
// ends before a cluster is copied as zeros; one that has not allocated it is not
// copied.
func TestDirtyClusters(t *testing.T) {
	for _, c := range []struct {
		name      string
		fallocate bool
		clear     string
		want      [4]int // thick, thin after a write, inflated, inflated clone of an empty snapshot
	}{
		{"unmap", true, "unmap", [4]int{}},
		{"no unmap", false, "unmap", [4]int{8, 1, 8, 0}},
		{"no unmap, write_zeroes", false, "write_zeroes", [4]int{}},
		{"none", true, "none", [4]int{8, 1, 8, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, _ := newStore(t)
			p.Kill()
			testkit.Must(t, p.Start())
			client := dial(t, p)
			client.must("bdev_aio_create", with{"name": "aio0", "filename": "disk", "block_size": 4096, "fallocate": c.fallocate}, nil)
			create := func(name string, size int, thin bool) {
				client.must("bdev_lvol_create", with{"lvs_name": "lvs0", "lvol_name": name, "size_in_mib": size, "thin_provision": thin, "clear_method": c.clear}, nil)
			}
			soil := func() { // the same clusters again
				create("old", 2, false)
				testkit.Value(testkit.Value(p.OpenLvol("lvs0/old"))(t).WriteAt(bytes.Repeat([]byte{1}, 2<<20), 0))(t)
				client.must("bdev_lvol_delete", with{"name": "lvs0/old"}, nil)
			}
			var got [4]int
			for i, prepare := range []func(){
				func() { create("v", 2, false) },
				func() {
					create("v", 2, true)
					testkit.Value(testkit.Value(p.OpenLvol("lvs0/v"))(t).WriteAt(make([]byte, 4096), 0))(t)
				},
				func() {
					create("v", 2, true)
					client.must("bdev_lvol_inflate", with{"name": "lvs0/v"}, nil)
				},
				func() {
					create("v", 0, true)
					client.must("bdev_lvol_snapshot", with{"lvol_name": "lvs0/v", "snapshot_name": "empty"}, nil)
					client.must("bdev_lvol_resize", with{"name": "lvs0/v", "size_in_mib": 2}, nil)
					client.must("bdev_lvol_inflate", with{"name": "lvs0/v"}, nil)
					client.must("bdev_lvol_delete", with{"name": "lvs0/empty"}, nil)
				},
			} {
				soil()
				prepare()
				got[i] = shown(t, p, "lvs0/v")
				client.must("bdev_lvol_delete", with{"name": "lvs0/v"}, nil)
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("clusters with old data in a thick lvol, a thin one, an inflated one, and one inflated over an empty snapshot: %v, want %v", got, c.want)
			}
			if free(client) != 31 {
				t.Errorf("%d clusters are free at the end, want 31", free(client))
			}
		})
	}
}
