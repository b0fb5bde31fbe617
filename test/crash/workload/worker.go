package workload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

// worker is one orchestrator's thread: it owns its objects, makes one call at
// a time, and repeats a call whose answer was lost until it is answered.
type worker struct {
	number   int
	dir      string // for staging and target paths
	rand     *rand.Rand
	machine  Machine
	conn     *grpc.ClientConn
	patience time.Duration // how long a call may take
	serial   int

	disks    []*disk
	pictures []*picture
	albums   []*album
	inline   []*disk // ephemeral volumes that are published
	open     *doubt
	calls    map[string]int
	reflink  bool // the pool can cut a volume in use
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

// settle makes one step towards a worker of which nothing is open; done: it is
// one.
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
	return w.mend()
}

// call makes one call. When its answer is lost it leaves the doubt open; when
// it is refused the refusal is an error of the test.
func (w *worker) call(d *doubt, method string, fn func(ctx context.Context) error, apply func()) error {
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

// choose picks the next thing to do among those that are possible now.
func (w *worker) choose() func() error {
	const most = 4
	var can []func() error
	add := func(weight int, f func() error) {
		for range weight {
			can = append(can, f)
		}
	}
	if len(w.disks) < most {
		add(3, w.create)
		if len(w.pictures) > 0 {
			add(2, w.restore)
		}
		if len(w.disks) > 0 {
			add(1, w.clone)
		}
	}
	if len(w.inline) < 1 {
		add(1, w.publishInline)
	} else {
		add(1, w.unpublishInline)
	}
	if d := w.some(func(d *disk) bool { return !d.granted }); d != nil {
		add(3, func() error { return w.grant(d) })
		add(2, func() error { return w.remove(d) })
	}
	if d := w.some(func(d *disk) bool { return d.granted && !d.staged }); d != nil {
		add(3, func() error { return w.stage(d) })
		add(1, func() error { return w.revoke(d) })
	}
	if d := w.some(func(d *disk) bool { return d.staged && !d.published }); d != nil {
		add(3, func() error { return w.publish(d) })
		add(1, func() error { return w.unstage(d) })
	}
	if d := w.some(func(d *disk) bool { return d.published && !d.readOnly }); d != nil {
		add(4, func() error { return w.write(d) })
	}
	if d := w.some(func(d *disk) bool { return d.published }); d != nil {
		add(2, func() error { return w.unpublish(d) })
		add(1, func() error { return w.read(d) })
		add(1, func() error { return w.expandNode(d) })
	}
	if d := w.some(func(*disk) bool { return true }); d != nil {
		add(1, func() error { return w.expand(d) })
		add(1, func() error { return w.modify(d) })
		if len(w.pictures) < most {
			add(2, func() error { return w.snapshot(d) })
		}
	}
	if len(w.disks) >= 2 && len(w.albums) < 1 {
		add(1, w.group)
	}
	if p := w.lonePicture(); p != nil {
		add(1, func() error { return w.removePicture(p) })
	}
	if len(w.albums) > 0 {
		add(1, w.removeAlbum)
	}
	return can[w.rand.IntN(len(can))]
}

func (w *worker) some(fits func(*disk) bool) *disk {
	for _, i := range w.rand.Perm(len(w.disks)) {
		if fits(w.disks[i]) {
			return w.disks[i]
		}
	}
	return nil
}

func (w *worker) lonePicture() *picture {
	for _, i := range w.rand.Perm(len(w.pictures)) {
		if w.pictures[i].group == "" {
			return w.pictures[i]
		}
	}
	return nil
}

// write changes files or blocks of a published volume and remembers what they
// must hold; the data path is the kernel's, so no call to the driver is made.
func (w *worker) write(d *disk) error {
	for range 1 + w.rand.IntN(3) {
		seed := 1 + w.rand.Uint64N(math.MaxUint64)
		key := fmt.Sprintf("file-%d", w.rand.IntN(6))
		if d.block {
			key = fmt.Sprint(w.rand.IntN(int(d.reach / site.BlockSize)))
		}
		err := w.machine.Write(context.Background(), w.spot(d, key), seed)
		switch {
		case errors.Is(err, ErrDown):
			d.mayHold(key, seed)
			return err
		case err != nil:
			return fmt.Errorf("write %s to %s: %w", key, d, err)
		}
		d.data[key] = []uint64{seed}
	}
	return nil
}

// read compares all that a published volume must hold.
func (w *worker) read(d *disk) error { return w.readSome(d, len(d.data)) }

func (w *worker) readSome(d *disk, most int) error {
	for key, seeds := range d.data {
		if most--; most < 0 {
			return nil
		}
		if err := w.machine.Check(context.Background(), w.spot(d, key), seeds...); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	return nil
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
