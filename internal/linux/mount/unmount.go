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
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

const (
	// unmountBound waits for short uses by others, such as a statfs.
	unmountBound = 500 * time.Millisecond
	maxLayers    = 64
)

var errNotMounted = errors.New("not mounted")

func unmount(ctx context.Context, target string) error {
	if err := checkTarget(target); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	for layer := range maxLayers {
		err := retry.For(ctx, unmountBound, func() (again bool, err error) {
			err = unmountTop(ctx, target)
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
	return errs.Errorf(errs.Precondition, "unmount %s: more than %d mounts are stacked there; unmount again to remove the rest", target, maxLayers)
}

// unmountTop does not follow a symbolic link at the end. It is never lazy: a
// device would then seem unused that is not.
func unmountTop(ctx context.Context, target string) error {
	for {
		switch err := kernelcall.Unmount(ctx, target, unix.UMOUNT_NOFOLLOW); {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return errNotMounted
		default:
			return err
		}
	}
}

// confirmUnmounted checks that EINVAL meant that nothing is mounted: the kernel
// also returns it for a mount that this process is not permitted to unmount.
func confirmUnmounted(ctx context.Context, target string) error {
	e, mounted, err := At(ctx, target)
	if err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	if mounted {
		return errs.Errorf(errs.Denied, "unmount %s: the kernel does not permit this process to unmount %s (%s): it is locked by another mount namespace or is the root", target, e.Source, e.FSType)
	}
	return nil
}

func busy(ctx context.Context, target string) error {
	path, err := Resolve(target)
	if err != nil {
		path = target
	}
	return errs.Errorf(errs.Precondition, "unmount %s: %w: it is used by %s; stop or close that, then try again", target, ErrBusy, holders.OfMount(ctx, path))
}

func checkTarget(target string) error {
	if !filepath.IsAbs(target) || filepath.Clean(target) == "/" {
		return errs.Errorf(errs.Invalid, "mount point %q: an absolute path other than / is required", target)
	}
	return nil
}

func deviceName(e Entry) string { return filepath.Base(e.Source) }
