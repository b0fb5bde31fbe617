package csi

import (
	"testing"

	"github.com/cleatproject/cleat/volume"
)

func TestCheckUsable(t *testing.T) {
	for name, c := range map[string]struct {
		v  volume.Volume
		c  volume.Capability
		ok bool
	}{
		"block":                   {volume.Volume{Content: volume.Filesystem, FSType: "xfs"}, volume.Capability{Block: true}, true},
		"mount of a block volume": {volume.Volume{Content: volume.Raw}, volume.Capability{}, false},
		"its file system":         {volume.Volume{Content: volume.Filesystem, FSType: "xfs"}, volume.Capability{FSType: "xfs"}, true},
		"another file system":     {volume.Volume{Content: volume.Filesystem, FSType: "xfs"}, volume.Capability{FSType: "ext4"}, false},
		"unknown file system":     {volume.Volume{Content: volume.Filesystem}, volume.Capability{FSType: "ext4"}, true},
	} {
		if err := checkUsable(c.v, c.c); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
