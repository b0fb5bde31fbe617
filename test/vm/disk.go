package vm

import (
	"errors"
	"fmt"
	"os"
)

// Disk is a block device's contents on the host. It outlives the guest: the
// next one may boot with it.
type Disk interface {
	// Args are QEMU's arguments that make the disk, usually a -blockdev and a
	// -device. id names the block node, and is the serial number by which the
	// guest knows the disk; the device is id-device.
	Args(id string) []string
	// Cut is called at the instant in which the guest loses its power, before
	// its QEMU is killed: from then on the disk takes nothing more, and it
	// loses what a disk may lose.
	Cut() error
}

// File is a disk in a file of raw bytes. What the guest has written survives a
// cut: the host's page cache has it.
type File struct{ Path string }

// RawFile makes a sparse file of size bytes as a disk; one that exists is kept
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

// Args makes a virtio disk. Discards punch holes into the file.
func (f File) Args(id string) []string {
	return []string{
		"-blockdev", f.node(id),
		"-device", "virtio-blk-pci,drive=" + id + ",id=" + id + "-device,serial=" + id,
	}
}

func (f File) node(name string) string {
	return "driver=raw,node-name=" + name + ",discard=unmap,file.driver=file,file.filename=" + escape(f.Path)
}

// Cut loses nothing.
func (File) Cut() error { return nil }
