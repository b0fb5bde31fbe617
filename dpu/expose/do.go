package expose

import (
	"context"
	"errors"
	"time"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
)

// queueSize is that of the node driver's virtio-fs devices, in entries; queues
// is its number of request queues where nobody asks for another.
const (
	queueSize = 256
	queues    = 8
)

// do carries a step out.
func (r *run) do(ctx context.Context, s Step) error {
	switch s.Op {
	case NoteFunction:
		return r.page.change(func(n *note) { n.made(s.Function) })
	case NoteGiven:
		return r.page.change(func(n *note) { n.Given = s.Function })
	case ForgetNote:
		return r.page.remove()
	case CreateFunction:
		return r.createFunction(ctx, s)
	case CreateFSFunction:
		return r.createFunction(ctx, s)
	case SettleDevice:
		return r.settle(ctx)
	}
	if r.q.Mode == request.Filesystem {
		return r.doFilesystem(ctx, s)
	}
	return r.doBlock(ctx, s)
}

func (r *run) doBlock(ctx context.Context, s Step) error {
	switch s.Op {
	case CreateSubsystem:
		return r.snap.CreateSubsystem(ctx, s.NQN)
	case CreateNamespace:
		return r.snap.CreateNamespace(ctx, s.NQN, snap.Namespace{Bdev: r.q.Device, NSID: s.NSID, UUID: s.UUID})
	case CreateController:
		_, err := r.snap.CreateController(ctx, snap.Controller{NQN: s.NQN, PCI: s.PCI, VUID: s.Function, Suspended: true, Parameters: r.q.Parameters})
		return err
	case AttachNamespace:
		return r.snap.AttachNamespace(ctx, s.Controller, s.NSID)
	case ResumeController:
		return r.snap.ResumeController(ctx, s.Controller)
	case PlugController:
		return r.snap.PlugController(ctx, s.Controller)
	case UnplugController:
		return r.snap.UnplugController(ctx, s.Controller)
	case DetachNamespace:
		return r.snap.DetachNamespace(ctx, s.Controller, s.NSID)
	case DestroyController:
		return r.snap.DestroyController(ctx, s.Controller)
	case DestroyNamespace:
		return r.snap.DestroyNamespace(ctx, s.NQN, s.NSID)
	case DestroyFunction:
		return r.snap.DestroyFunction(ctx, s.Function)
	case DestroySubsystem:
		return r.snap.DestroySubsystem(ctx, s.NQN)
	}
	return errs.Errorf(errs.Internal, "no block device has the step %q", s.Op)
}

func (r *run) doFilesystem(ctx context.Context, s Step) error {
	device := fsName(r.q.Device)
	switch s.Op {
	case CreateTransport:
		return r.snap.CreateTransport(ctx)
	case CreateManager:
		return r.snap.CreateManager(ctx, s.Manager)
	case StartTransport:
		return r.snap.StartTransport(ctx)
	case CreateDevice:
		d := snap.NewFSDevice{Name: device, Fsdev: r.q.Device, Tag: fsTag(r.q.Device), Queues: queues, QueueSize: queueSize}
		if n, given := r.q.Parameters[queuesParameter].(int); given {
			d.Queues = n
		}
		return r.snap.CreateFSDevice(ctx, d)
	case PlaceDevice:
		return r.snap.PlaceFSDevice(ctx, device, s.Manager, s.Function)
	case StartDevice:
		return r.snap.StartFSDevice(ctx, device)
	case PlugDevice:
		return r.snap.PlugFSDevice(ctx, device)
	case UnplugDevice:
		return r.snap.UnplugFSDevice(ctx, device)
	case StopDevice:
		return r.snap.StopFSDevice(ctx, device)
	case DestroyDevice:
		return r.snap.DestroyFSDevice(ctx, device)
	case DestroyFSFunction:
		return r.snap.DestroyFSFunction(ctx, s.Manager, s.Function)
	}
	return errs.Errorf(errs.Internal, "no file system has the step %q", s.Op)
}

// createFunction makes a function and notes it. Before it notes which there are,
// so that one is found whose name never came.
func (r *run) createFunction(ctx context.Context, s Step) error {
	known, err := r.known(ctx)
	if err != nil {
		return err
	}
	if err := r.page.change(func(n *note) { n.VUID, n.Begun, n.Known = "", true, known }); err != nil {
		return err
	}
	var vuid string
	if s.Op == CreateFSFunction {
		vuid, err = r.snap.CreateFSFunction(ctx, s.Manager)
	} else {
		vuid, err = r.snap.CreateFunction(ctx)
	}
	if _, refused := errors.AsType[*spdk.Error](err); refused {
		return errors.Join(err, r.page.remove()) // there is none to be looked for
	}
	if err != nil {
		return err
	}
	return r.page.change(func(n *note) { n.made(vuid) })
}

// known is all functions that there are, or that were there before this device's
// function was first asked for.
func (r *run) known(ctx context.Context) ([]string, error) {
	if n, err := r.page.read(); err != nil || n.Begun {
		return n.Known, err
	}
	p, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	all := []string{}
	switch s := p.(type) {
	case block:
		for _, f := range s.functions {
			all = append(all, f.VUID)
		}
	case filesystem:
		for _, f := range s.functions {
			all = append(all, f.VUID)
		}
	}
	return all, nil
}

// settle waits until the host has let go of an unplugged device, as far as SNAP
// tells: longer than Settle it never does.
func (r *run) settle(ctx context.Context) error {
	const every = 50 * time.Millisecond
	over := time.NewTimer(r.config.Settle)
	defer over.Stop()
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		p, err := r.read(ctx)
		if err != nil {
			return err
		}
		if gone(p, r.q) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errs.Errorf(errs.Unavailable, "the host still has it: %w", context.Cause(ctx))
		case <-over.C:
			return nil
		case <-again.C:
		}
	}
}

// gone tells whether the host surely has a virtio-fs device no more.
func gone(p planner, q Request) bool {
	s, ok := p.(filesystem)
	if !ok {
		return true
	}
	d, there := s.device(fsName(q.Device))
	if !there {
		return true
	}
	f, _ := s.of(d, q)
	return !d.plugged(f)
}
