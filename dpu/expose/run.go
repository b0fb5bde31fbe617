package expose

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
)

const (
	// maxSteps is far above what any exposure takes: SNAP does not do what it
	// says it did.
	maxSteps = 64
	// maxUnanswered is how often one step is asked for whose answer is lost.
	maxUnanswered = 3
)

// run is one Expose or Hide.
type run struct {
	*Exposer
	q       Request
	methods spdk.MethodSet
	page    *page
	random  string // UUID for the namespace
	did     steps
	made    map[Op]bool // what surely or perhaps was done by this run
}

// planner is a state of SNAP that knows what is to be done next.
type planner interface {
	expose(Request, steps) (Step, Exposed, error)
	hide(Request, steps) ([]Step, error)
}

func (e *Exposer) begin(ctx context.Context, q Request, need []string) (*run, error) {
	methods, err := e.config.RPC.Methods(ctx)
	if err != nil {
		return nil, err
	}
	if err := lacking(e.config.RPC.Socket(), q.Mode, methods, need); err != nil {
		return nil, err
	}
	p, err := e.notes.open(ctx, q.Device, q.Mode)
	if err != nil {
		return nil, err
	}
	return &run{Exposer: e, q: q, methods: methods, page: p, random: uuid.NewString(), did: steps{}, made: map[Op]bool{}}, nil
}

func (r *run) end() {
	if err := r.page.close(); err != nil {
		r.log.Warn("The note of a device is not closed well", "device", r.q.Device, "error", err)
	}
}

// through does one step after the other until there is none left. After every
// step SNAP is read again. A refusal is final when the same step is still to be
// done then: otherwise somebody else was at work, or had been. An answer that
// never came says nothing, so that step is asked for again.
func (r *run) through(ctx context.Context, next func(context.Context) (Step, error)) error {
	var last Step
	var failed error
	unanswered := 0
	for range maxSteps {
		step, err := next(ctx)
		switch {
		case err != nil && failed != nil:
			return fmt.Errorf("%w; and then: %w", failed, err)
		case err != nil:
			return err
		case step.Op == "":
			return nil
		case failed != nil && step == last && (!errors.Is(failed, spdk.Unanswered) || unanswered >= maxUnanswered):
			return failed
		}
		last, failed = step, r.take(ctx, step)
		if failed == nil {
			unanswered = 0
			continue
		}
		failed = fmt.Errorf("%s: %w", step.Op, failed)
		if _, refused := errors.AsType[*spdk.Error](failed); !refused && !errors.Is(failed, spdk.Unanswered) || ctx.Err() != nil {
			return failed
		}
		unanswered++
	}
	return errs.Errorf(errs.Internal, "after %d steps there is still to %s: SNAP does not show what it says it did", maxSteps, last.Op)
}

// take does a step and keeps what is known of it.
func (r *run) take(ctx context.Context, step Step) error {
	log := r.log.With("device", r.q.Device, "step", string(step.Op))
	err := r.do(ctx, step)
	_, refused := errors.AsType[*spdk.Error](err)
	if refused && step.Maybe {
		log.InfoContext(ctx, "SNAP refuses the step, so it is taken for done", "error", err)
		r.did[step] = true
		return nil
	}
	if err == nil || errors.Is(err, spdk.Unanswered) {
		r.made[step.Op] = true
	}
	if err != nil {
		log.DebugContext(ctx, "A step failed", "error", err)
		return err
	}
	log.DebugContext(ctx, "A step is done")
	r.did[step] = true
	return nil
}

// rollBack takes back what this run made, in reverse order, and returns the
// error with what became of it.
func (r *run) rollBack(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.config.RollBack)
	defer cancel()
	undo := undoes()
	err := r.through(ctx, func(ctx context.Context) (Step, error) {
		p, err := r.read(ctx)
		if err != nil {
			return Step{}, err
		}
		all, err := p.hide(r.q, r.did)
		return first(slices.DeleteFunc(all, func(s Step) bool {
			return !slices.ContainsFunc(undo[s.Op], func(o Op) bool { return r.made[o] })
		})), err
	})
	if err != nil {
		return fmt.Errorf("%w; rolling back: %w; hide the device, or expose it again", cause, err)
	}
	return cause
}

// lacking is the error of a process that cannot do it.
func lacking(socket string, mode request.Mode, methods spdk.MethodSet, need []string) error {
	missing := slices.DeleteFunc(slices.Clone(need), func(name string) bool { return methods.Has(name) })
	switch {
	case len(missing) == 0:
		return nil
	case len(missing) == len(need):
		return errs.Errorf(errs.Unsupported, "the process at %s is no SNAP process: it has none of the methods %q", socket, missing)
	}
	return errs.Errorf(errs.Unsupported, "the SNAP process at %s does not expose in the mode %s: it lacks the methods %q", socket, mode, missing)
}

// exposing is the methods of an Expose.
func exposing(q Request) []string {
	plug := q.PCI == ""
	if q.Mode == request.Filesystem {
		need := []string{
			"virtio_fs_get_transports", "virtio_fs_transport_create", "virtio_fs_doca_get_possible_managers", "virtio_fs_doca_get_managers",
			"virtio_fs_doca_manager_create", "virtio_fs_transport_start", "virtio_fs_doca_get_functions", "virtio_fs_get_devices",
			"virtio_fs_device_create", "virtio_fs_doca_device_modify", "virtio_fs_device_start",
		}
		if plug {
			need = append(need, "virtio_fs_doca_function_create", "virtio_fs_doca_device_hotplug")
		}
		return need
	}
	need := []string{
		"nvme_subsystem_list", "nvme_subsystem_create", "nvme_namespace_create", "emulation_function_list",
		"nvme_controller_create", "nvme_controller_attach_ns", "nvme_controller_resume",
	}
	if plug {
		need = append(need, "nvme_function_create", "nvme_controller_hotplug")
	}
	return need
}

// hiding is the methods of a Hide that are asked for in any case; what else it
// needs depends on what it finds.
func hiding(mode request.Mode) []string {
	if mode == request.Filesystem {
		return []string{
			"virtio_fs_get_transports", "virtio_fs_doca_get_possible_managers", "virtio_fs_doca_get_managers",
			"virtio_fs_doca_get_functions", "virtio_fs_get_devices", "virtio_fs_device_destroy",
		}
	}
	return []string{"nvme_subsystem_list", "emulation_function_list", "nvme_namespace_destroy", "nvme_controller_destroy", "nvme_subsystem_destroy"}
}
