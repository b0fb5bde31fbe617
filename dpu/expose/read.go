package expose

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
)

// read asks SNAP for its state, and reads the notes. To ask does no harm, so it
// asks again when a connection is lost.
func (r *run) read(ctx context.Context) (planner, error) {
	for again := 1; ; again++ {
		p, err := r.readOnce(ctx)
		if !errors.Is(err, spdk.Unanswered) || again == maxUnanswered || ctx.Err() != nil {
			return p, err
		}
	}
}

func (r *run) readOnce(ctx context.Context) (planner, error) {
	n, err := r.page.read()
	if err != nil {
		return nil, err
	}
	var others []string
	if n.Begun {
		if others, err = r.page.others(); err != nil {
			return nil, err
		}
	}
	if r.q.Mode == request.Filesystem {
		return r.readFilesystem(ctx, n, others)
	}
	return r.readBlock(ctx, n, others)
}

func (r *run) readBlock(ctx context.Context, n note, others []string) (planner, error) {
	s := block{note: n, others: others, random: r.random}
	var err error
	if s.subsystems, err = r.snap.Subsystems(ctx); err != nil {
		return nil, err
	}
	functions, err := r.snap.Functions(ctx)
	if err != nil {
		return nil, err
	}
	s.functions = flat(functions)
	if p := s.find(r.q); len(p.controllers) > 0 && r.methods.Has(controllerList) {
		s.suspended, err = r.suspended(ctx)
	}
	return s, err
}

const controllerList = "nvme_controller_list"

// suspended asks which controllers are, of those of which it is told. Releases
// that show it otherwise, or not at all, tell of none.
func (r *run) suspended(ctx context.Context) (map[string]bool, error) {
	var raw json.RawMessage
	if err := r.config.RPC.Call(ctx, controllerList, nil, &raw); err != nil {
		if _, refused := errors.AsType[*spdk.Error](err); refused {
			return nil, nil
		}
		return nil, err
	}
	var listed []struct {
		snap.ControllerRef
		Suspended *bool `json:"suspended"`
	}
	if err := json.Unmarshal(raw, &listed); err != nil {
		r.log.DebugContext(ctx, "The list of controllers is of another shape", "error", err)
		return nil, nil
	}
	told := map[string]bool{}
	for _, c := range listed {
		if c.Suspended != nil {
			told[c.ID] = *c.Suspended
		}
	}
	return told, nil
}

func (r *run) readFilesystem(ctx context.Context, n note, others []string) (planner, error) {
	s := filesystem{note: n, others: others}
	var err error
	if s.transports, err = r.snap.Transports(ctx); err != nil || len(s.transports) == 0 {
		return s, err
	}
	if s.possible, err = r.snap.PossibleManagers(ctx); err != nil {
		return s, err
	}
	if s.managers, err = r.snap.Managers(ctx); err != nil {
		return s, err
	}
	if !slices.ContainsFunc(s.transports, func(t snap.Transport) bool { return t.Name == docaTransport && t.State == started }) {
		return s, nil
	}
	var lists []struct {
		Manager   string       `json:"manager"`
		Functions []fsFunction `json:"Function List"`
	}
	if err := r.config.RPC.Call(ctx, "virtio_fs_doca_get_functions", nil, &lists); err != nil {
		return nil, err
	}
	for _, l := range lists {
		for _, f := range l.Functions {
			f.manager, f.Pluggable = l.Manager, strings.ToLower(f.Pluggable)
			s.functions = append(s.functions, f)
		}
	}
	err = r.config.RPC.Call(ctx, "virtio_fs_get_devices", nil, &s.devices)
	return s, err
}
