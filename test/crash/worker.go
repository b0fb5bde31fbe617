package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// worker is one orchestrator's thread: it owns its objects, makes one call at
// a time, and repeats a call whose answer was lost until it is answered.
type worker struct {
	number int
	dir    string // for staging and target paths
	rand   *rand.Rand
	conn   *grpc.ClientConn
	serial int

	disks    []*disk
	pictures []*picture
	albums   []*album
	inline   []*disk // ephemeral volumes that are published
	open     *doubt
	calls    map[string]int
	reflink  bool // the pool can cut a volume in use
}

// errDown says that the driver is gone; the worker rests until the next start.
var errDown = errors.New("the driver is down")

const callTimeout = 20 * time.Second

func (w *worker) name(kind string) string {
	w.serial++
	return fmt.Sprintf("%s-%d-%d", kind, w.number, w.serial)
}

func (w *worker) staging(d *disk) string { return filepath.Join(w.dir, "staging-"+d.name) }
func (w *worker) target(d *disk) string  { return filepath.Join(w.dir, "target-"+d.name) }

// run works until the driver goes down or the context ends.
func (w *worker) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.step(); errors.Is(err, errDown) {
			return nil
		} else if err != nil {
			return fmt.Errorf("worker %d: %w", w.number, err)
		}
	}
	return nil
}

func (w *worker) step() error {
	if w.open != nil {
		d := w.open
		if d.undo != nil && w.rand.IntN(2) == 0 {
			return d.undo()
		}
		if err := d.again(); err != nil {
			return fmt.Errorf("repeat of %s: %w", d.what, err)
		}
		return nil
	}
	return w.choose()()
}

// call makes one call. When its answer is lost it leaves the doubt open; when
// it is refused the refusal is an error of the test.
func (w *worker) call(d *doubt, method string, fn func(ctx context.Context) error, apply func()) error {
	var attempt func() error
	attempt = func() error {
		deadline := time.Now().Add(callTimeout)
		for {
			ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
			err := fn(ctx)
			cancel()
			switch status.Code(err) {
			case codes.OK:
				w.open = nil
				w.calls[method]++
				apply()
				return nil
			case codes.Unavailable, codes.Canceled:
				d.again = attempt
				w.open = d
				return errDown
			case codes.Aborted, codes.DeadlineExceeded:
				if time.Now().Before(deadline) {
					continue
				}
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
		seed := w.rand.Uint64()
		key := fmt.Sprintf("file-%d", w.rand.IntN(6))
		if d.block {
			key = fmt.Sprint(w.rand.IntN(int(d.reach / blockSize)))
		}
		if err := writeData(w.target(d), d.block, key, seed); err != nil {
			return fmt.Errorf("write %s to %s: %w", key, d, err)
		}
		d.data[key] = seed
	}
	return nil
}

func (w *worker) makeStaging(d *disk) error { return os.MkdirAll(w.staging(d), 0o750) }

func (d *disk) capability() *csi.VolumeCapability {
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if d.block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: d.fsType, VolumeMountGroup: d.group}}
	}
	return c
}
