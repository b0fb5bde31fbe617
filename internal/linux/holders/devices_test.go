package holders_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

// The device number of a mounted btrfs is not that of its device.
func TestMountsOfDevice(t *testing.T) {
	for _, fs := range mkfs.Types() {
		v := mkfstest.New(t, fs, mkfs.MinSize(fs))
		users, found := holders.UsersOfDevice(t.Context(), v.Device.Major, v.Device.Minor)
		if !found || !strings.Contains(users, "a mount at "+v.Dir+" in") {
			t.Errorf("%s: users %q, found: %t; want the mount at %s", fs, users, found, v.Dir)
		}
	}
}

// The file system of a partition is lost with its disk.
func TestMountsOfPartitions(t *testing.T) {
	const begin = 1 << 20
	size := mkfs.MinSize(mkfs.Ext4)
	dir := t.TempDir()
	image := mkfstest.File(t, dir, "image", size)
	mkfstest.Make(t, image, mkfs.Ext4)
	content := testkit.Value(os.ReadFile(image))(t)
	disk := testkit.Value(os.Create(filepath.Join(dir, "disk")))(t)
	defer disk.Close()
	testkit.Value(disk.WriteAt(content, begin))(t)
	d := mkfstest.Attach(t, disk.Name())
	device := testkit.Value(os.Open(d.Path))(t)
	defer device.Close()
	info := testkit.Value(unix.IoctlLoopGetStatus64(int(device.Fd())))(t)
	info.Flags |= unix.LO_FLAGS_PARTSCAN
	testkit.Must(t, unix.IoctlLoopSetStatus64(int(device.Fd()), info)) // it can have partitions
	p := unix.BlkpgPartition{Start: begin, Length: size, Pno: 1}
	arg := unix.BlkpgIoctlArg{Op: unix.BLKPG_ADD_PARTITION, Datalen: int32(unsafe.Sizeof(p)), Data: (*byte)(unsafe.Pointer(&p))}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, device.Fd(), unix.BLKPG, uintptr(unsafe.Pointer(&arg))); errno != 0 {
		t.Fatal(errno)
	}

	var major, minor uint32
	number := testkit.Value(os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop%[1]dp1/dev", d.Number)))(t)
	testkit.Value(fmt.Sscanf(string(number), "%d:%d", &major, &minor))(t)
	node, at := filepath.Join(dir, "partition"), filepath.Join(dir, "mounted")
	testkit.Must(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(major, minor))), os.Mkdir(at, 0o700), unix.Mount(node, at, "ext4", 0, ""))
	defer testkit.Unmount(t, at)
	users, found := holders.UsersOfDevice(t.Context(), d.Major, d.Minor)
	if !found || !strings.Contains(users, "a mount at "+at+" in") {
		t.Errorf("users %q, found: %t; want the mount at %s", users, found, at)
	}
}

// A search without descriptors has not looked: its result is no reason to remove a
// device, or the mount of a file system.
func TestSearchWithoutDescriptors(t *testing.T) {
	v := mkfstest.New(t, mkfs.Ext4, mkfs.MinSize(mkfs.Ext4))
	release := testkit.LimitFiles(t, 0)
	users, found := holders.UsersOfDevice(t.Context(), v.Device.Major, v.Device.Minor)
	onFS, foundOnFS := holders.UsersOfFileSystem(t.Context(), v.Device.Major, v.Device.Minor)
	release()
	if !found || !foundOnFS {
		t.Errorf("%s, which is mounted, is used by %q (found: %t), its file system by %q (found: %t); want found", v.Device.Path, users, found, onFS, foundOnFS)
	}
}
