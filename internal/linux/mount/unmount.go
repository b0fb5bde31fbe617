package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

const (
	// unmountBound is how long the short uses of others are waited for, such as
	// a look at the free space, or a file that is being closed.
	unmountBound = 500 * time.Millisecond
	// maxLayers is how many mounts on one target are taken away in one call.
	maxLayers = 64
)

var errNotMounted = errors.New("not mounted")

func unmount(ctx context.Context, target string) error {
	if err := checkTarget(target); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	for layer := range maxLayers {
		err := retry.For(ctx, unmountBound, func() (again bool, err error) {
			err = unmountTop(target)
			return errors.Is(err, unix.EBUSY), err
		})
		switch {
		case errors.Is(err, errNotMounted) && layer > 0:
			return nil
		case errors.Is(err, errNotMounted):
			return confirmUnmounted(ctx, target)
		case errors.Is(err, unix.EBUSY):
			return busy(ctx, target)
		case err != nil:
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
	return errs.Errorf(errs.Precondition, "unmount %s: more than %d mounts were stacked there, call again for the rest", target, maxLayers)
}

// unmountTop takes away the topmost mount. It never follows a link at the end
// and is never lazy: a lazy unmount would call a device free that is not.
func unmountTop(target string) error {
	for {
		switch err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return errNotMounted
		default:
			return err
		}
	}
}

// confirmUnmounted looks whether the kernel's EINVAL meant that nothing is
// mounted: it also says so of a mount that this process may not touch.
func confirmUnmounted(ctx context.Context, target string) error {
	e, mounted, err := At(ctx, target)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	if mounted {
		return errs.Errorf(errs.Denied, "unmount %s: the kernel does not let this process take %s (%s) away: it is locked by another mount namespace or is the root", target, e.Source, e.FSType)
	}
	return nil
}

func busy(ctx context.Context, target string) error {
	path, err := Resolve(target)
	if err != nil {
		path = target
	}
	return errs.Errorf(errs.Precondition, "unmount %s: %w: it is held by %s; stop or close that, then try again", target, ErrBusy, holders.OfMount(ctx, path))
}

// checkTarget admits what can be a mount point of ours at all.
func checkTarget(target string) error {
	if !filepath.IsAbs(target) || filepath.Clean(target) == "/" {
		return errs.Errorf(errs.Invalid, "mount point %q: an absolute path other than / is needed", target)
	}
	return nil
}

// deviceName is the kernel's short name of the device under a mount.
func deviceName(e Entry) string { return filepath.Base(e.Source) }
