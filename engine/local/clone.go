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
	freezeBound = 10 * time.Second
	// writeBackBound limits the write-back before a freeze, with writes still
	// possible, and detects a guard that does not answer.
	writeBackBound = 2 * time.Minute
)

// cloneAttempts is the number of attempts when file systems are unmounted
// meanwhile.
const cloneAttempts = 5

// errUnmounted: a file system was unmounted between the lookup and the freeze.
var errUnmounted = errors.New("unmounted meanwhile")

// cloneRequest is one file to clone. clone is an empty file that gets the
// blocks of the source.
type cloneRequest struct {
	name  string // path of the source in the pool
	size  int64  // minimum size of the source
	clone *os.File
}

// cloneFrozen clones files at one moment: mounted file systems are frozen
// together, and unused files cannot be attached meanwhile. A raw device in use
// cannot be quiesced: it is refused unless allowCrashConsistent is set.
//
// The caller syncs the clones. Its commit deletes the freeze record with the
// key intent, unless that is empty.
func (e *Engine) cloneFrozen(ctx context.Context, requests []cloneRequest, allowCrashConsistent bool) (intent string, at time.Time, err error) {
	for range cloneAttempts {
		intent, at, err = e.cloneFrozenOnce(ctx, requests, allowCrashConsistent)
		if !errors.Is(err, errUnmounted) {
			return intent, at, err
		}
	}
	return "", at, errs.Errorf(errs.Busy, "no snapshot was taken: the volume was mounted or unmounted during each of the attempts; retry: %w", err)
}

func (e *Engine) cloneFrozenOnce(ctx context.Context, requests []cloneRequest, allowCrashConsistent bool) (intent string, at time.Time, err error) {
	sources, release, err := e.claimAll(ctx, requests)
	if err != nil {
		return "", at, err
	}
	defer release()
	mountpoints, err := freezableMounts(ctx, requests, sources, allowCrashConsistent)
	if err != nil {
		return "", at, err
	}
	thaw, intent, err := e.freeze(ctx, mountpoints)
	if err != nil {
		return "", at, err
	}
	at = time.Now().UTC()
	err = cloneAll(ctx, requests, sources)
	crashpoint.Hit("clone.cloned")
	if err := errors.Join(err, thaw()); err != nil {
		return "", at, errors.Join(err, e.commit(ctx, func(tx *store.Tx) error { return deleteFreezeRecord(tx, intent) }))
	}
	crashpoint.Hit("clone.thawed")
	return intent, at, nil
}

// claimAll claims the sources in the order of the requests.
func (e *Engine) claimAll(ctx context.Context, requests []cloneRequest) (sources []*claimed, release func(), err error) {
	release = func() {
		for _, s := range sources {
			_ = s.release() // closing releases the locks
		}
	}
	for _, c := range requests {
		s, err := e.claim(ctx, c.name, c.size)
		if err != nil {
			release()
			return nil, nil, err
		}
		sources = append(sources, s)
	}
	return sources, release, nil
}

// freezableMounts refuses sources in use that cannot be frozen.
func freezableMounts(ctx context.Context, requests []cloneRequest, sources []*claimed, allowCrashConsistent bool) ([]string, error) {
	var mountpoints []string
	for i, s := range sources {
		at, err := s.use.mountpoint(ctx)
		switch {
		case err != nil:
			return nil, err
		case at != "":
			mountpoints = append(mountpoints, at)
		case s.use.inUse() && !allowCrashConsistent:
			return nil, errs.Errorf(errs.Precondition, "%s is attached as a raw device (%s), whose writes cannot be paused for a consistent group snapshot; detach it, or set %s=member for a crash-consistent snapshot of each volume", requests[i].name, s.use, keyConsistency)
		}
	}
	slices.Sort(mountpoints)
	return slices.Compact(mountpoints), nil
}

// freeze freezes the mounted file systems and thaw thaws them; after an error
// of thaw the clones are invalid. The freeze record (key intent) is durable
// before the freeze.
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
	crashpoint.Hit("clone.intent")
	bounded, cancel := context.WithTimeoutCause(ctx, e.writeBack, errWriteBack)
	defer cancel()
	frozen, err := e.guard.Freeze(bounded, mountpoints, freezeBound)
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = errors.Join(context.Cause(bounded), err)
		}
		err = freezeError(err)
		return nil, "", errors.Join(err, e.commit(ctx, func(tx *store.Tx) error { return deleteFreezeRecord(tx, intent) }))
	}
	crashpoint.Hit("clone.frozen")
	return func() error { return freezeError(frozen.Thaw()) }, intent, nil
}

var errWriteBack = errors.New("write-back of the file system timed out")

func freezeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, freeze.ErrNotMounted), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", errUnmounted, err)
	case errors.Is(err, errWriteBack):
		return errs.Errorf(errs.Unavailable, "no snapshot was taken; retry under less write load, or detach the volume: %w", err)
	case errors.Is(err, freeze.ErrExpired):
		return errs.Errorf(errs.Unavailable, "no snapshot was taken: writes were paused for the maximum of %s; retry under less write load, or detach the volume: %w", freezeBound, err)
	case errors.Is(err, freeze.ErrFrozen):
		return errs.Errorf(errs.Precondition, "another process has frozen the file system; thaw it first (fsfreeze --unfreeze): %w", err)
	case errors.Is(err, freeze.ErrBroken):
		return errs.Errorf(errs.Unavailable, "no snapshot was taken: another process thawed the file system meanwhile; retry: %w", err)
	}
	return fmt.Errorf("freeze: %w", err)
}

// deleteFreezeRecord deletes the freeze record with the key intent, unless that
// is empty.
func deleteFreezeRecord(tx *store.Tx, intent string) error {
	if intent == "" {
		return nil
	}
	return freezeBucket.Delete(tx, intent)
}

func cloneAll(ctx context.Context, requests []cloneRequest, sources []*claimed) error {
	for i, c := range requests {
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
