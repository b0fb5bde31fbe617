package nvme

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/volume/access"
)

// lockBound waits for the end of a killed process, whose system calls can wait
// for a target.
const lockBound = time.Minute

// LockHostNQN keeps other drivers on this machine from using a host NQN, until
// the lock is closed: each removes connections of its NQN that have no record in
// its directory. The lock is an abstract UNIX socket, as drivers have no directory
// in common. All are in the host's network namespace.
func LockHostNQN(ctx context.Context, hostNQN string) (lock io.Closer, err error) {
	err = retry.For(ctx, lockBound, func() (again bool, err error) {
		lock, err = new(net.ListenConfig).Listen(ctx, "unix", "@cleat-nvme-"+access.HostID(hostNQN))
		if errors.Is(err, unix.EADDRINUSE) {
			return true, fmt.Errorf("another cleat csi on this node uses the host NQN %s: give each release its own csi.nvme.clusterID: %w", hostNQN, err)
		}
		return false, err
	})
	return lock, err
}
