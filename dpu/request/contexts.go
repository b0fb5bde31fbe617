package request

import (
	"maps"
	"slices"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// maxContexts bounds the contexts of a device, in bytes: they are kept, and
// given back by GetDevice.
const maxContexts = 128 << 10

// check refuses contexts that cannot be kept.
func (c Contexts) check() error {
	size := 0
	for _, m := range []struct {
		name string
		of   map[string]string
	}{{publishContext, c.Publish}, {volumeContext, c.Volume}, {storageParameters, c.Storage}} {
		for _, key := range slices.Sorted(maps.Keys(m.of)) {
			size += len(key) + len(m.of[key])
			if access.LooksSecret(key) || access.LooksSecret(m.of[key]) {
				return volume.Errorf(volume.Invalid, "%s holds a key of NVMe or Ceph itself (not shown): this contract carries no secrets; put it into a file of the directory of keys and give the file's name", m.name)
			}
		}
	}
	if size > maxContexts {
		return volume.Errorf(volume.Invalid, "the contexts have %d bytes together, %d are possible", size, maxContexts)
	}
	return nil
}
