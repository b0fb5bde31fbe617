package newvolume

import (
	"errors"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

const mib = 1 << 20

func TestSize(t *testing.T) {
	source := &Origin{Description: "volume source", Size: 64 * mib}
	for _, c := range []struct {
		req  volume.SizeRange
		fs   string
		from *Origin
		want int64 // 0: OutOfRange
	}{
		{volume.SizeRange{}, "", nil, defaultSize}, {volume.SizeRange{Required: 1}, "", nil, mib}, {volume.SizeRange{Required: mib + 1}, "", nil, 2 * mib},
		{volume.SizeRange{Required: 1}, "xfs", nil, 300 << 20}, {volume.SizeRange{Limit: mib - 1}, "", nil, 0},
		{volume.SizeRange{}, "", source, 64 * mib}, {volume.SizeRange{Required: 65 * mib}, "", source, 65 * mib}, {volume.SizeRange{Limit: 63 * mib}, "", source, 0},
	} {
		got, err := Size(c.req, c.fs, c.from, mib)
		if got != c.want || (err != nil) != (c.want == 0) || err != nil && errs.KindOf(err) != errs.OutOfRange {
			t.Errorf("%s, %q, %v: %d, %v; want %d", c.req, c.fs, c.from, got, err, c.want)
		}
	}
}

// Two file systems with one UUID can damage each other on a node: the kernel
// regards them as one.
func TestCopiesOfBtrfs(t *testing.T) {
	source := &Origin{Description: "volume source", Content: volume.Filesystem, FSType: "btrfs"}
	for content, refused := range map[volume.Content]bool{volume.Filesystem: true, volume.Raw: false} {
		if _, err := FSType(volume.CreateRequest{Content: content}, source); errors.Is(err, errs.Invalid) != refused {
			t.Errorf("a copy with content %s: %v; want Invalid %t", content, err, refused)
		}
	}
	if fs, err := FSType(volume.CreateRequest{Content: volume.Filesystem, FSType: "btrfs"}, nil); fs != "btrfs" || err != nil {
		t.Errorf("a new volume: %q, %v", fs, err)
	}
}
