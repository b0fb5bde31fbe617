package attach_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/attach/file"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// barrier is an attacher whose Detach calls wait until a number of them is in
// progress at once.
type barrier struct {
	attach.Attacher
	mu      sync.Mutex
	missing int
	reached chan struct{}
}

func (b *barrier) Detach(ctx context.Context, t attach.Target) error {
	b.mu.Lock()
	if b.missing--; b.missing == 0 {
		close(b.reached) // and it stays open
	}
	b.mu.Unlock()
	select {
	case <-b.reached:
		return b.Attacher.Detach(ctx, t)
	case <-ctx.Done():
		return errors.New("the others were not begun meanwhile")
	}
}

// TestHeldVolumesAtOnce: at start-up volumes that another mount namespace holds
// do not wait for each other, be they half unstaged or on no record.
func TestHeldVolumesAtOnce(t *testing.T) {
	const count = 8
	for _, recorded := range []bool{true, false} {
		t.Run(fmt.Sprintf("recorded %t", recorded), func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var stages []attach.StageRequest
			for i := range count {
				s := n.staging(volume.ID(fmt.Sprint("vol-", i)), mkfs.Ext4)
				n.stage(s)
				stages = append(stages, s)
			}
			release := holdMounts(t, n.dir)
			for _, s := range stages {
				n.ok("record", n.PutStageRecord(t.Context(), s, attach.Undoing, n.Boot(), n.device(s)))
				if !recorded {
					n.ok("unmount", mount.Unmount(t.Context(), s.Staging))
				}
			}
			n.ok("close", n.Close())
			if !recorded {
				n.ok("remove", os.Remove(n.config.Store))
			}
			b := &barrier{Attacher: file.New(n.pool), missing: count, reached: make(chan struct{})}
			n.config.Attachers = map[string]attach.Attacher{file.Protocol(): b}
			n.start()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := n.Reconcile(ctx); err != nil {
				t.Fatalf("reconcile: %v, with %d volumes not begun", err, b.missing)
			}
			n.loopCount(count)
			release()
			n.restart()
			n.loopCount(0)
		})
	}
}
