// Package fusefile shows a disk.Disk as a file of this machine, through FUSE:
// scratchfs.MountImage mounts the file system in it, whose writes and flushes
// then fail, or are lost, as the test chooses. It needs root.
//
// The disk is served by goroutines of the test. A program that maps a file of
// that file system into its memory must be another process: a page fault blocks
// the Go runtime, and so the disk.
package fusefile

import (
	"context"
	"math"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// Serve returns the path of the file, which exists until the test ends.
// Requests during a power loss fail with EIO.
func Serve(t testing.TB, d *disk.Disk) (path string) {
	t.Helper()
	dir := t.TempDir()
	root := &directory{}
	root.disk.disk = d
	server := testkit.Value(fs.Mount(dir, root, &fs.Options{MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "disk", MaxWrite: 1 << 20}}))(t)
	t.Cleanup(func() {
		testkit.EventuallyNil(t, "umount "+dir, server.Unmount) // the kernel detaches a loop device later
		server.Wait()
	})
	return filepath.Join(dir, fileName)
}

const fileName = "disk"

type directory struct {
	fs.Inode
	disk file
}

// OnAdd implements fs.NodeOnAdder.
func (d *directory) OnAdd(ctx context.Context) {
	d.AddChild(fileName, d.NewPersistentInode(ctx, &d.disk, fs.StableAttr{Mode: fuse.S_IFREG}), false)
}

type file struct {
	fs.Inode
	disk *disk.Disk
}

var (
	_ fs.NodeOnAdder   = (*directory)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
	_ fs.NodeAllocater = (*file)(nil)
)

// Getattr implements fs.NodeGetattrer.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size = fuse.S_IFREG|0o600, uint64(f.disk.Size())
	return 0
}

// Open implements fs.NodeOpener. The page cache must not have the file: flushes
// would come too late.
func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

// Read implements fs.NodeReader.
func (f *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	length := max(0, min(int64(len(dest)), f.disk.Size()-off))
	a := f.disk.Do(nbd.Request{Command: nbd.Read, Offset: uint64(off), Length: uint32(length)})
	return fuse.ReadResultData(a.Data), syscall.Errno(a.Error)
}

// Write implements fs.NodeWriter.
func (f *file) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	a := f.disk.Do(nbd.Request{Command: nbd.Write, Offset: uint64(off), Length: uint32(len(data)), Data: append([]byte(nil), data...)})
	if a.Error != 0 {
		return 0, syscall.Errno(a.Error)
	}
	return uint32(len(data)), 0
}

// Allocate implements fs.NodeAllocater: discards.
func (f *file) Allocate(_ context.Context, _ fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if mode != unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE || size > math.MaxUint32 {
		return syscall.EOPNOTSUPP
	}
	return syscall.Errno(f.disk.Do(nbd.Request{Command: nbd.Trim, Offset: off, Length: uint32(size)}).Error)
}

// Fsync implements fs.NodeFsyncer.
func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	return syscall.Errno(f.disk.Do(nbd.Request{Command: nbd.Flush}).Error)
}
