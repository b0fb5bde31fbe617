package scratchfs

import (
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ShutDown ends a mounted file system (xfs or ext4) as the kernel does after a
// fatal error of its disk: nothing of its log is written any more.
func ShutDown(t testing.TB, dir string) {
	t.Helper()
	const goingDown, noLogFlush = 0x8004587d, 2 // XFS_IOC_GOINGDOWN, which ext4 has too
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	how := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), goingDown, uintptr(unsafe.Pointer(&how))); errno != 0 {
		t.Fatalf("shut the file system at %s down: %v", dir, errno)
	}
}
