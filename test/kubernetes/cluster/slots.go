package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// slots is the maximum number of concurrent clusters on a machine. With a
// fourth on two cores, all would miss their deadlines.
const slots = 3

// acquireSlot waits until fewer than slots clusters run on this machine.
// Closing the returned file, or the end of the process, releases the slot.
func acquireSlot(ctx context.Context) (*os.File, error) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for said := false; ; {
		for n := range slots {
			f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf(".cleat-cluster-%d", n)), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return nil, fmt.Errorf("acquire a cluster slot: %w", err)
			}
			if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
				return f, nil
			} else if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, errors.Join(fmt.Errorf("acquire a cluster slot: %w", err), f.Close())
			}
			f.Close()
		}
		if !said {
			fmt.Fprintf(os.Stderr, "cluster: %d run on this machine; this one waits for one of them to end\n", slots)
			said = true
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
