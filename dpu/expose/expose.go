// Package expose shows a device of a SNAP process to the host and takes it back,
// in the order in which DPF's node driver does: a bdev becomes the namespace of
// an emulated NVMe function, a file system device an emulated virtio-fs device.
//
// What is to be done next follows from what SNAP has (the planners, which are
// pure), so that an Expose or a Hide that was cut off anywhere is continued by
// the next one. What SNAP cannot tell, which function was made for which device,
// is noted in a directory before it is made.
package expose

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
)

const (
	defaultSettle   = 2 * time.Second
	defaultRollBack = 30 * time.Second
)

// Config is where SNAP is and how patient an Exposer is. RPC and Dir are needed.
type Config struct {
	RPC *spdk.Client
	// Dir is for notes of what SNAP does not tell; absolute. It is made when it
	// is missing. They are worth as much as SNAP's own state, so /run is right.
	Dir string
	// Settle bounds the wait for a virtio-fs device to be gone from the host
	// before it is stopped. Zero is 2 s.
	Settle time.Duration
	// RollBack bounds the roll-back of an Expose that failed. Zero is 30 s.
	RollBack time.Duration
	Logger   *slog.Logger // nil: no log
}

// Exposer exposes and hides. It may be used by several goroutines and several
// processes at once: those that name one device wait for each other.
type Exposer struct {
	config Config
	snap   snap.SNAP
	notes  notes
	log    *slog.Logger
}

// New checks the configuration; it asks nobody. Errors: errs.Invalid.
func New(c Config) (*Exposer, error) {
	switch {
	case c.RPC == nil:
		return nil, errs.Errorf(errs.Invalid, "expose: there is no client of a SNAP process")
	case !filepath.IsAbs(c.Dir):
		return nil, errs.Errorf(errs.Invalid, "the directory of notes %q is not an absolute path, as /run/cleat/expose is", c.Dir)
	case c.Settle < 0 || c.RollBack < 0:
		return nil, errs.Errorf(errs.Invalid, "waits of %s and %s are not possible: none is negative", c.Settle, c.RollBack)
	}
	if c.Settle == 0 {
		c.Settle = defaultSettle
	}
	if c.RollBack == 0 {
		c.RollBack = defaultRollBack
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Exposer{config: c, snap: snap.SNAP{RPC: c.RPC}, notes: notes{dir: c.Dir, socket: c.RPC.Socket()}, log: c.Logger}, nil
}

// Request names a device, and how it is to be shown.
type Request struct {
	Device string // of a bdev or a file system device of the SNAP process
	Mode   request.Mode

	// PCI is the address of a function that is there already and free; VUID
	// that of one that is not plugged yet. With neither a function is made, and
	// plugged in. Hide needs one of them only where it says so.
	PCI, VUID string

	// Of block devices. 0 and empty: 1 and a random one, or what the namespace
	// has already.
	NSID uint32
	UUID string

	// Parameters go into nvme_controller_create; see Parameters. Of file
	// systems there is num_request_queues alone.
	Parameters map[string]any

	// Keep leaves what a failed Expose has made, for the next one to go on with.
	Keep bool
}

// Exposed is a device as the host has it. Its JSON is what cleat device expose
// prints.
type Exposed struct {
	Device string `json:"device"`
	Mode   string `json:"mode"` // Block or Filesystem
	VUID   string `json:"vuid"`
	PCI    string `json:"pciAddress"`

	// Of block devices.
	Controller string `json:"controllerId,omitempty"`
	NQN        string `json:"nqn,omitempty"`
	NSID       uint32 `json:"nsid,omitempty"`
	UUID       string `json:"uuid,omitempty"`

	// Of file systems.
	Name string `json:"deviceName,omitempty"` // of the virtio-fs device
	Tag  string `json:"tag,omitempty"`        // what the host mounts
}

// Expose shows a device to the host and returns when the host has it. It takes
// up what there is of the exposure, also of the node driver's, and makes what is
// missing. What it made itself it takes back when a step fails, unless the
// request says Keep.
//
// Errors name the step, SNAP's method and what SNAP says. errs.Unsupported: the
// process lacks methods; Exists: the device is exposed otherwise; NotFound and
// Busy: of the function that was asked for; Precondition: SNAP does not tell
// enough.
func (e *Exposer) Expose(ctx context.Context, q Request) (Exposed, error) {
	q, err := q.forExpose()
	if err != nil {
		return Exposed{}, err
	}
	r, err := e.begin(ctx, q, exposing(q))
	if err != nil {
		return Exposed{}, fmt.Errorf("expose %s: %w", q.Device, err)
	}
	defer r.end()
	var shown Exposed
	err = r.through(ctx, func(ctx context.Context) (step Step, err error) {
		p, err := r.read(ctx)
		if err != nil {
			return Step{}, err
		}
		step, shown, err = p.expose(q, r.did)
		return step, err
	})
	if err == nil {
		return shown, nil
	}
	err = fmt.Errorf("expose %s: %w", q.Device, err)
	if q.Keep {
		return Exposed{}, err
	}
	return Exposed{}, r.rollBack(ctx, err)
}

// Hide takes a device away from the host, and everything that an exposure made
// of it. The bdev or the file system device stays. What is absent is success.
func (e *Exposer) Hide(ctx context.Context, q Request) error {
	q, err := q.forHide()
	if err != nil {
		return err
	}
	r, err := e.begin(ctx, q, hiding(q.Mode))
	if err != nil {
		return fmt.Errorf("hide %s: %w", q.Device, err)
	}
	defer r.end()
	err = r.through(ctx, func(ctx context.Context) (Step, error) {
		p, err := r.read(ctx)
		if err != nil {
			return Step{}, err
		}
		steps, err := p.hide(q, r.did)
		return first(steps), err
	})
	if err != nil {
		return fmt.Errorf("hide %s: %w", q.Device, err)
	}
	return nil
}
