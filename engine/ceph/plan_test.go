package ceph

import (
	"errors"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Two file systems with one UUID can damage each other on a node: the kernel
// regards them as one.
func TestCopiesOfBtrfs(t *testing.T) {
	source := &origin{description: "volume source", content: volume.Filesystem, fsType: "btrfs"}
	for content, refused := range map[volume.Content]bool{volume.Filesystem: true, volume.Raw: false} {
		p := plan{CreateRequest: volume.CreateRequest{Content: content}}
		if err := p.setFilesystem(source); errors.Is(err, errs.Invalid) != refused {
			t.Errorf("a copy with content %s: %v; want Invalid %t", content, err, refused)
		}
	}
	p := plan{CreateRequest: volume.CreateRequest{Content: volume.Filesystem, FSType: "btrfs"}}
	if err := p.setFilesystem(nil); err != nil {
		t.Errorf("a new volume: %v", err)
	}
}
