package host

import (
	"context"
	"fmt"
	"time"

	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/sriov/plan"
)

// Do does a step, and does not return nil before the machine shows it. What is
// done already is not done again, so each may be repeated, also when it ended
// half-way. It is a *Hung when the kernel does not come back.
func (h *Host) Do(ctx context.Context, s plan.Step) error {
	if s == nil {
		return fmt.Errorf("do a step: there is none")
	}
	if err := checkAddress(s.Function()); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	do, bound := h.how(s)
	if do == nil {
		return fmt.Errorf("%s: steps of type %T are not known here", s, s)
	}
	key, err := h.physical(s.Function())
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return h.run(ctx, key, s.String(), bound, func(ctx context.Context, c *call) error {
		if err := do(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		return nil
	})
}

func (h *Host) how(s plan.Step) (do func(context.Context, *call) error, bound time.Duration) {
	bound = h.bounds.step
	switch s := s.(type) {
	case plan.SetNumVFs:
		do, bound = func(ctx context.Context, c *call) error { return h.setNumVFs(ctx, c, s) }, h.bounds.numVFs
	case plan.SetESwitch:
		do, bound = func(ctx context.Context, c *call) error { return h.setESwitch(ctx, c, s) }, h.bounds.numVFs
	case plan.SetMTU:
		do = func(ctx context.Context, c *call) error { return h.setMTU(ctx, c, s) }
	case plan.SetUp:
		do = func(ctx context.Context, c *call) error { return h.setUp(ctx, c, s) }
	case plan.SetMAC:
		do = func(ctx context.Context, c *call) error { return h.setMAC(ctx, c, s) }
	case plan.SetGUID:
		do = func(ctx context.Context, c *call) error { return h.setGUID(ctx, c, s) }
	case plan.SetTrust:
		do = func(ctx context.Context, c *call) error { return h.setTrust(ctx, c, s) }
	case plan.SetSpoofCheck:
		do = func(ctx context.Context, c *call) error { return h.setSpoofCheck(ctx, c, s) }
	case plan.Bind:
		do = func(ctx context.Context, c *call) error { return h.bind(ctx, c, s) }
	case plan.Unbind:
		do = func(ctx context.Context, c *call) error { return h.unbindStep(ctx, c, s) }
	case plan.SetVDPA:
		do = func(ctx context.Context, c *call) error { return h.setVDPA(ctx, c, s) }
	}
	return do, bound
}

// await looks until it is so: what a write began may end later. wrong says what
// is not as it has to be, "" when all is.
func await(ctx context.Context, bound time.Duration, wrong func() (string, error)) error {
	return retry.For(ctx, bound, func() (bool, error) {
		w, err := wrong()
		if err != nil {
			return false, err
		}
		if w != "" {
			return true, fmt.Errorf("the kernel took it, but %s", w)
		}
		return false, nil
	})
}
