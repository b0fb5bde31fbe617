package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

// formatting creates the file system of a volume whose engine leaves that to
// the node.
type formatting struct {
	fsType  mkfs.Type
	uuid    string
	scratch string
}

// scratchPrefix begins the names of the file system images next to the store.
const scratchPrefix = "mkfs-"

// growScratch is the path of the copy in which an ext4 grows.
func (m *Manager) growScratch(id volume.ID) string {
	return filepath.Join(filepath.Dir(m.config.Store), scratchPrefix+"grow-"+formatUUID(id))
}

// formatting returns nil unless the request allows it.
func (m *Manager) formatting(r StageRequest) *formatting {
	// The device of a volume that several nodes read is read-only.
	if !r.Format || r.Capability.Block || r.Capability.Mode == volume.MultiNodeReaderOnly {
		return nil
	}
	id := formatUUID(r.Volume)
	return &formatting{
		fsType:  cmp.Or(mkfs.Type(r.Capability.FSType), mkfs.Ext4),
		uuid:    id,
		scratch: filepath.Join(filepath.Dir(m.config.Store), scratchPrefix+id),
	}
}

// formatUUID derives the file system's UUID from the volume: this identifies
// what another node, or a killed process, left incomplete.
func formatUUID(id volume.ID) string {
	return uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/cleatproject/cleat/volume/"+string(id))).String()
}

// run creates the file system unless the device has one. Damage is left to
// identify, and content of another kind is refused by Format.
func (f *formatting) run(ctx context.Context, d Device) error {
	info, err := probe(ctx, d)
	switch {
	case errors.Is(err, mkfs.ErrDamaged):
		return nil
	case err != nil:
		return fmt.Errorf("read the superblock of %s: %w", d.Path, err)
	case info.Type != "":
		return nil
	}
	return mkfs.Format(ctx, mkfs.FormatRequest{Device: d.Path, Type: f.fsType, UUID: f.uuid, Scratch: f.scratch})
}

// removeScratch removes the images of a killed process: they have the size of
// their volumes, and are sparse.
func removeScratch(store string) error {
	dir := filepath.Dir(store)
	names, err := os.ReadDir(dir)
	for _, e := range names {
		if strings.HasPrefix(e.Name(), scratchPrefix) {
			err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return err
}
