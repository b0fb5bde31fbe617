package spdk

import (
	"context"
	"errors"
	"fmt"
	"strings"

	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

// Reasons are part of the API.
const (
	reasonUnreachable = "TargetUnreachable"
	reasonNotExported = "ExportsIncomplete"
	reasonMissing     = "LvolMissing"
	reasonLost        = "LvolLost"
	reasonFull        = "StoreFull"
	reasonNearlyFull  = "StoreNearlyFull"
	reasonForeign     = "UnknownExports"
	reasonOldData     = "OldDataVisible"
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
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonMissing, Message: fmt.Sprintf("target %s does not show lvol %s yet: %v", t.Name, r.UUID, err)}}, nil
	default:
		return []volume.Condition{{Severity: volume.Inaccessible, Reason: reasonUnreachable, Message: t.explain(err, "read the volume").Error()}}, nil
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
			found[reasonUnreachable] = append(found[reasonUnreachable], a.err.Error())
			continue
		}
		for _, s := range a.stores {
			switch p := (place{t, s}); {
			case s.FreeClusters == 0 && s.TotalClusters > 0:
				found[reasonFull] = append(found[reasonFull], fmt.Sprintf("%s has no free space: writes to thin volumes fail", p))
			case s.FreeClusters*100 < s.TotalClusters*nearlyFull:
				found[reasonNearlyFull] = append(found[reasonNearlyFull], fmt.Sprintf("%s has %d of %d bytes free", p, s.Free(), s.Size()))
			}
			if n := thin[s.UUID]; n > 0 {
				if unmaps, err := e.unmapsSoon(ctx, t, s.BaseBdev); err != nil {
					found[reasonUnreachable] = append(found[reasonUnreachable], err.Error())
				} else if !unmaps {
					found[reasonOldData] = append(found[reasonOldData], fmt.Sprintf("%s, and %d thin volumes or copies can show it", cannotUnmap(place{t, s}), n))
				}
			}
		}
		lost, foreign, failure := t.state()
		if len(lost) > 0 {
			found[reasonLost] = append(found[reasonLost], lostCondition(t, lost))
		}
		if failure != nil {
			found[reasonNotExported] = append(found[reasonNotExported], failure.Error())
		}
		if len(foreign) > 0 {
			found[reasonForeign] = append(found[reasonForeign], fmt.Sprintf("target %s has %d exports of volumes that no record has, such as %s", t.Name, len(foreign), foreign[0]))
		}
	}
	var all []volume.Condition
	for _, reason := range []string{reasonUnreachable, reasonLost, reasonFull, reasonNearlyFull, reasonNotExported, reasonForeign, reasonOldData} {
		if texts := found[reason]; len(texts) > 0 {
			c := volume.Condition{Severity: volume.Degraded, Reason: reason, Message: strings.Join(texts, "; ")}
			if reason == reasonUnreachable && silent == len(e.order) {
				c.Severity = volume.Inaccessible
			}
			all = append(all, c)
		}
	}
	return all, nil
}

func (t *target) state() (lost, foreign []string, failure error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost, t.foreign, t.failure
}
