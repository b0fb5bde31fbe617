package spdk

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// nearlyFull is the free part of a store, in percent, below which thin volumes
// are in danger.
const nearlyFull = 10

// VolumeHealth implements volume.Health.
func (e *Engine) VolumeHealth(ctx context.Context, id volume.ID) ([]volume.Condition, error) {
	r, err := e.find(ctx, id)
	if err != nil {
		return nil, err
	}
	t, err := e.target(r.Target)
	if err != nil {
		return nil, err
	}
	bdev, err := t.Client.Bdev(ctx, r.UUID)
	if err == nil {
		return e.showsOldData(ctx, t, r, bdev)
	}
	isMissing := errors.Is(err, rpc.NotFound)
	err = e.missing(ctx, t, r, err)
	switch {
	case errors.Is(err, errLost):
		return volumeLost(err.Error()), nil
	case isMissing:
		return []volume.Condition{volume.NewCondition(volume.Inaccessible, volume.ReasonLvolMissing, fmt.Sprintf("%s on target %s: %v", r.UUID, t.Name, err))}, nil
	default:
		return []volume.Condition{volume.NewCondition(volume.Inaccessible, volume.ReasonTargetUnreachable, unreachable(t, err))}, nil
	}
}

// StorageHealth implements volume.Health. The storage is inaccessible when no
// target answers.
func (e *Engine) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	thin, err := e.thinVolumes(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string][]string{}
	var silent int
	for _, a := range e.askStores(ctx, "") {
		t := a.target
		if a.err != nil {
			silent++
			found[volume.ReasonTargetUnreachable] = append(found[volume.ReasonTargetUnreachable], unreachable(t, a.err))
			continue
		}
		for _, s := range a.stores {
			switch p := (place{t, s}); {
			case s.FreeClusters == 0 && s.TotalClusters > 0:
				found[volume.ReasonStoreFull] = append(found[volume.ReasonStoreFull], fmt.Sprintf("%s has no free space: writes to thin volumes fail", p))
			case s.FreeClusters*100 < s.TotalClusters*nearlyFull:
				found[volume.ReasonStoreNearlyFull] = append(found[volume.ReasonStoreNearlyFull], fmt.Sprintf("%s has %d of %d bytes free", p, s.Free(), s.Size()))
			}
			if n := thin[s.UUID]; n > 0 {
				if u, err := e.uncleanSoon(ctx, place{t, s}); err != nil {
					found[volume.ReasonTargetUnreachable] = append(found[volume.ReasonTargetUnreachable], unreachable(t, err))
				} else if u != nil {
					found[volume.ReasonOldDataVisible] = append(found[volume.ReasonOldDataVisible], fmt.Sprintf("%s: %d thin volumes or copies can show data of deleted volumes, as %s; %s", place{t, s}, n, u.why, u.remedy))
				}
			}
		}
		lost, foreign, failure := t.state()
		if len(lost) > 0 {
			found[volume.ReasonLvolLost] = append(found[volume.ReasonLvolLost], lostCondition(t, lost))
		}
		if failure != nil {
			found[volume.ReasonExportsIncomplete] = append(found[volume.ReasonExportsIncomplete], t.Name+": "+failure.Error())
		}
		if len(foreign) > 0 {
			found[volume.ReasonUnknownExports] = append(found[volume.ReasonUnknownExports], fmt.Sprintf("%s has %d exports of volumes that no record has, such as %s", t.Name, len(foreign), foreign[0]))
		}
	}
	var all []volume.Condition
	for _, reason := range []string{volume.ReasonTargetUnreachable, volume.ReasonLvolLost, volume.ReasonStoreFull, volume.ReasonStoreNearlyFull, volume.ReasonExportsIncomplete, volume.ReasonUnknownExports, volume.ReasonOldDataVisible} {
		if texts := found[reason]; len(texts) > 0 {
			severity := volume.Degraded
			if reason == volume.ReasonTargetUnreachable && silent == len(e.order) {
				severity = volume.Inaccessible
			}
			all = append(all, volume.NewCondition(severity, reason, strings.Join(texts, "; ")))
		}
	}
	return all, nil
}

// unreachable begins with the target, which a long address of the error could
// push out of a message.
func unreachable(t *target, err error) string { return fmt.Sprintf("%s: %v", t.Name, err) }

func (t *target) state() (lost, foreign []string, failure error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost, t.foreign, t.failure
}
