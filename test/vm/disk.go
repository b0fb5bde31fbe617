package vm

import (
	"errors"
	"fmt"
	"os"
)

// Disk is the contents of a block device on the host. It outlives the guest, so
// the next one can boot with it.
type Disk interface {
	// Args returns the QEMU arguments of the disk, usually a -blockdev and a
	// -device. id is the name of the block node and the disk's serial number in
	// the guest; the device is named id-device.
	Args(id string) []string
	// LosePower simulates a power loss, before QEMU is killed: the disk accepts no
	// more requests and loses writes as a real disk would.
	LosePower() error
}

// File is a raw disk image. All writes survive a power loss, because they are
// in the host's page cache.
type File struct{ Path string }

// RawFile creates a sparse disk image of size bytes. An existing file is kept
// and must have that size.
func RawFile(path string, size int64) (File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return File{}, err
	case info.Size() == 0:
		err = f.Truncate(size)
	case info.Size() != size:
		err = fmt.Errorf("disk %s has %d bytes, not %d", path, info.Size(), size)
	}
	return File{path}, errors.Join(err, f.Close())
}

// Args returns a virtio disk. Discards punch holes into the file.
func (f File) Args(id string) []string {
	return []string{
		"-blockdev", f.node(id),
		"-device", "virtio-blk-pci,drive=" + id + ",id=" + id + "-device,serial=" + id,
	}
}

func (f File) node(name string) string {
	return "driver=raw,node-name=" + name + ",discard=unmap,file.driver=file,file.filename=" + escape(f.Path)
}

// LosePower loses nothing.
func (File) LosePower() error { return nil }
