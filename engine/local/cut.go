package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/freeze"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/reflink"
	"github.com/cleatproject/cleat/internal/store"
)

const (
	// freezeBound is the longest that writers are made to wait for a cut.
	freezeBound = 10 * time.Second
	// writeBackBound is the longest that a cut waits before, while writers go
	// on, until what they wrote is on disk; also for a guard that never speaks.
	writeBackBound = 2 * time.Minute
)

// cutAttempts is how often a cut begins anew when mounts go away under it.
const cutAttempts = 5

// errUnmounted: what was mounted a moment ago is not any more.
var errUnmounted = errors.New("unmounted meanwhile")

// cutting is one file to be cut: clone, which is empty, is to share the
// blocks that the file has at the moment of the cut.
type cutting struct {
	name  string // of the source, in the pool
	size  int64  // that the source has at least
	clone *os.File
}

// cut clones files at one moment. What is mounted is frozen meanwhile, all of
// it at once; what is not in use cannot be attached meanwhile. Of a device
// that is in use otherwise nobody can say what its user holds back: only with
// memberwise it is cut too, as a crash would leave it.
//
// The clones are complete on return, and for the caller to sync. The intent, if
// there is one, is a key that the caller's commit passes to forget. The time is
// that of the cut.
func (e *Engine) cut(ctx context.Context, cuttings []cutting, memberwise bool) (intent string, at time.Time, err error) {
	for range cutAttempts {
		intent, at, err = e.cutOnce(ctx, cuttings, memberwise)
		if !errors.Is(err, errUnmounted) {
			return intent, at, err
		}
	}
	return "", at, errs.Errorf(errs.Busy, "no snapshot was taken: the volume was mounted or unmounted during each attempt; try again: %w", err)
}

func (e *Engine) cutOnce(ctx context.Context, cuttings []cutting, memberwise bool) (intent string, at time.Time, err error) {
	sources, release, err := e.claimAll(ctx, cuttings)
	if err != nil {
		return "", at, err
	}
	defer release()
	mountpoints, err := quietable(ctx, cuttings, sources, memberwise)
	if err != nil {
		return "", at, err
	}
	thaw, intent, err := e.freeze(ctx, mountpoints)
	if err != nil {
		return "", at, err
	}
	at = time.Now().UTC()
	err = cloneAll(ctx, cuttings, sources)
	crashpoint.Hit("cut.cloned")
	if err := errors.Join(err, thaw()); err != nil {
		return "", at, errors.Join(err, e.commit(ctx, func(tx *store.Tx) error { return forget(tx, intent) }))
	}
	crashpoint.Hit("cut.thawed")
	return intent, at, nil
}

// claimAll claims the sources in the order of the cuttings.
func (e *Engine) claimAll(ctx context.Context, cuttings []cutting) (sources []*claimed, release func(), err error) {
	release = func() {
		for _, s := range sources {
			_ = s.release() // locks go with the files
		}
	}
	for _, c := range cuttings {
		s, err := e.claim(ctx, c.name, c.size)
		if err != nil {
			release()
			return nil, nil, err
		}
		sources = append(sources, s)
	}
	return sources, release, nil
}

// quietable returns the mount points that are to be frozen, and refuses what
// can neither be frozen nor is at rest.
func quietable(ctx context.Context, cuttings []cutting, sources []*claimed, memberwise bool) ([]string, error) {
	var mountpoints []string
	for i, s := range sources {
		at, err := s.use.mountpoint(ctx)
		switch {
		case err != nil:
			return nil, err
		case at != "":
			mountpoints = append(mountpoints, at)
		case s.use.inUse() && !memberwise:
			return nil, errs.Errorf(errs.Precondition, "%s is attached as a raw device (%s), whose writes cannot be paused, so it cannot be in a consistent group snapshot; detach it, or set %s=member, which makes it crash-consistent by itself", cuttings[i].name, s.use, keyConsistency)
		}
	}
	slices.Sort(mountpoints)
	return slices.Compact(mountpoints), nil
}

// freeze stops all writing to the mounted file systems; thaw ends that, and
// its error means that the cut is worth nothing. The intent is durable before.
func (e *Engine) freeze(ctx context.Context, mountpoints []string) (thaw func() error, intent string, err error) {
	if len(mountpoints) == 0 {
		return func() error { return nil }, "", nil
	}
	intent = uuid.NewString()
	err = e.commit(ctx, func(tx *store.Tx) error {
		return freezeBucket.Put(tx, intent, freezeRecord{Mountpoints: mountpoints})
	})
	if err != nil {
		return nil, "", err
	}
	crashpoint.Hit("cut.intent")
	bounded, cancel := context.WithTimeoutCause(ctx, e.writeBack, errWriteBack)
	defer cancel()
	frozen, err := e.guard.Freeze(bounded, mountpoints, freezeBound)
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = errors.Join(context.Cause(bounded), err)
		}
		err = freezeError(err)
		return nil, "", errors.Join(err, e.commit(ctx, func(tx *store.Tx) error { return forget(tx, intent) }))
	}
	crashpoint.Hit("cut.frozen")
	return func() error { return freezeError(frozen.Thaw()) }, intent, nil
}

var errWriteBack = errors.New("the file system was not written back in time")

func freezeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, freeze.ErrNotMounted), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", errUnmounted, err)
	case errors.Is(err, errWriteBack):
		return errs.Errorf(errs.Unavailable, "no snapshot was taken; try again when less is written, or detach the volume: %w", err)
	case errors.Is(err, freeze.ErrExpired):
		return errs.Errorf(errs.Unavailable, "no snapshot was taken: it took longer than writes are paused (%s); try again when less is written, or detach the volume: %w", freezeBound, err)
	case errors.Is(err, freeze.ErrFrozen):
		return errs.Errorf(errs.Precondition, "another process has frozen the file system; thaw it first (fsfreeze --unfreeze): %w", err)
	case errors.Is(err, freeze.ErrBroken):
		return errs.Errorf(errs.Unavailable, "no snapshot was taken: another process thawed the file system meanwhile; try again: %w", err)
	}
	return fmt.Errorf("freeze: %w", err)
}

// forget drops the intent to freeze, if there is one.
func forget(tx *store.Tx, intent string) error {
	if intent == "" {
		return nil
	}
	return freezeBucket.Delete(tx, intent)
}

func cloneAll(ctx context.Context, cuttings []cutting, sources []*claimed) error {
	for i, c := range cuttings {
		for _, d := range sources[i].use.devices {
			if err := loop.Flush(ctx, d); err != nil && !errors.Is(err, loop.ErrGone) {
				return err
			}
		}
		if err := reflink.Clone(c.clone, sources[i].File); err != nil {
			return fmt.Errorf("clone %s: %w", c.name, err)
		}
	}
	return nil
}
