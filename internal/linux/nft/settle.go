package nft

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h.
const membarrierGlobal = 1

// Settle returns when the kernel has finished all that it was doing with
// packets when it was called: the rules that they met may be those before the
// last commit, which takes hold for new packets only. It waits for an RCU grace
// period, in which packets are taken from the network to their socket.
func Settle() error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
		switch {
		case errno == 0:
			return nil
		case errors.Is(errno, unix.EINTR):
		case errors.Is(errno, unix.ENOSYS), errors.Is(errno, unix.EINVAL), errors.Is(errno, unix.EPERM):
			// A kernel without it, or with processors that are never to be
			// disturbed: such a packet has microseconds left.
			return nil
		default:
			return os.NewSyscallError("membarrier", errno)
		}
	}
}
