package workload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

// worker is one orchestrator's thread: it owns its objects, makes one call at a
// time, and repeats a call whose answer was lost until it is answered.
type worker struct {
	number   int
	dir      string // for staging and target paths
	rand     *rand.Rand
	machine  Machine
	conn     *grpc.ClientConn
	down     <-chan struct{} // closed when the driver of conn is down
	patience time.Duration   // timeout of a call
	serial   int

	disks     []*disk
	snapshots []*snapshotState
	groups    []*groupState
	inline    []*disk // ephemeral volumes that are published
	open      *pendingCall
	calls     map[string]int
	reflink   bool   // the pool can snapshot a volume in use
	lean      string // the kind of call to prefer
}

func (w *worker) name(kind string) string {
	w.serial++
	return fmt.Sprintf("%s-%d-%d", kind, w.number, w.serial)
}

func (w *worker) staging(d *disk) string { return filepath.Join(w.dir, "staging-"+d.name) }
func (w *worker) target(d *disk) string  { return filepath.Join(w.dir, "target-"+d.name) }

func (w *worker) spot(d *disk, key string) site.Spot {
	return site.Spot{Target: w.target(d), Block: d.block, Key: key}
}

// run works until the driver goes down or the context ends.
func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.step(); errors.Is(err, ErrDown) {
			return nil
		} else if err != nil {
			return fmt.Errorf("worker %d: %w", w.number, err)
		}
	}
	return nil
}

func (w *worker) step() error {
	if done, err := w.settle(); !done || err != nil {
		return err
	}
	return w.choose()()
}

// settle makes one step towards a worker without a pending call; done: there is
// no such call.
func (w *worker) settle() (done bool, err error) {
	if d := w.open; d != nil {
		if d.undo != nil && w.rand.IntN(2) == 0 {
			return false, d.undo()
		}
		if err := d.again(); err != nil {
			return false, fmt.Errorf("repeat of %s: %w", d.what, err)
		}
		return false, nil
	}
	return w.recoverLost()
}

// call makes one call. A lost answer leaves a pending call; a refusal is an
// error of the test, unless the driver asks for a repeat: it is Unavailable while
// the kernel has not finished a call of the driver before.
func (w *worker) call(d *pendingCall, method string, fn func(ctx context.Context) error, apply func()) error {
	var attempt func() error
	attempt = func() error {
		deadline := time.Now().Add(w.patience)
		for {
			ctx, cancel := context.WithTimeout(context.Background(), w.patience)
			err := fn(ctx)
			cancel()
			switch code := status.Code(err); {
			case err == nil:
				w.open = nil
				w.calls[method]++
				apply()
				return nil
			case code == codes.Unavailable && !w.isDown() && time.Now().Before(deadline):
				time.Sleep(10 * time.Millisecond)
				continue
			case errors.Is(err, ErrDown), code == codes.Unavailable, code == codes.Canceled:
				d.again = attempt
				w.open = d
				return ErrDown
			case (code == codes.Aborted || code == codes.DeadlineExceeded) && time.Now().Before(deadline):
				continue
			}
			return fmt.Errorf("%s: %w", d.what, err)
		}
	}
	return attempt()
}

func (w *worker) isDown() bool {
	select {
	case <-w.down:
		return true
	default:
		return false
	}
}

func (d *disk) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if d.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: d.fsType, VolumeMountGroup: d.group}}
	}
	return c
}
