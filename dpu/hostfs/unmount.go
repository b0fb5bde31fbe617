package hostfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// unmountOrder is for a helper. Flags are those of umount2(2); none: as
// mount.Unmount does it.
type unmountOrder struct {
	Flags int `json:"flags,omitempty"`
}

// Unmount takes away what is mounted at Path(name), and the directory if it is
// empty. Absent is success. Precondition (and mount.ErrBusy): it is in use, and
// the message names by whom. When the server of a network file system does not
// answer, the mount is taken away by force, and at last detached: whoever still
// used it loses what it had not written. The caller takes it from SNAP first.
func (m *Mounts) Unmount(ctx context.Context, name string) error {
	target, err := m.target(name)
	if err != nil {
		return err
	}
	done, err := m.begin(ctx, target)
	if err != nil {
		return err
	}
	defer done()
	e, mounted, err := mount.At(ctx, target)
	switch {
	case err != nil:
		return err
	case mounted && isRemote(e.FSType):
		err = m.unmountRemote(ctx, target, e)
	case mounted:
		err = mount.Unmount(ctx, target)
	}
	if errors.Is(err, mount.ErrBusy) {
		return fmt.Errorf("%w (a SNAP process in another container that still has files open there does not show here: remove its device first)", err)
	}
	if err != nil {
		return err
	}
	removeEmpty(m.log, target)
	return nil
}

// isRemote tells the file systems whose unmount may wait for a server.
func isRemote(fsType string) bool {
	return fsType == "ceph" || strings.HasPrefix(fsType, "nfs") || strings.HasPrefix(fsType, "fuse")
}

// unmountRemote goes from the mild to the hard, and to the harder only when
// there was no answer.
func (m *Mounts) unmountRemote(ctx context.Context, target string, e mount.Entry) error {
	var err error
	for _, step := range []struct {
		flags int
		bound time.Duration
		what  string
	}{
		{0, m.config.Deadline / 2, ""},
		{unix.MNT_FORCE | unix.UMOUNT_NOFOLLOW, m.config.Deadline / 4, "unmounting by force"},
		{unix.MNT_DETACH | unix.UMOUNT_NOFOLLOW, m.config.Deadline / 4, "detaching the mount; what was not written is lost when the server does not come back"},
	} {
		if step.what != "" {
			m.log.Warn("the server of a mount does not answer: "+step.what, "path", target, "source", e.Source, "cause", err)
		}
		err = m.run(ctx, order{Target: target, Unmount: &unmountOrder{step.flags}}, step.bound)
		_, mounted, look := mount.At(context.WithoutCancel(ctx), target)
		switch {
		case look != nil:
			return look
		case !mounted:
			if err != nil { // the kernel tidies up behind the mount point that is gone
				m.log.Warn("unmounted, but the file system has not let go in time", "path", target, "source", e.Source, "err", err)
			}
			return nil
		case err == nil:
			return errs.Errorf(errs.Precondition, "unmount %s: somebody else has mounted there again", target)
		case ctx.Err() != nil:
			return fmt.Errorf("unmount %s: %w", target, err)
		case step.flags == 0 && !errors.Is(err, errNoAnswer):
			return err
		}
	}
	return fmt.Errorf("unmount %s (%s): %w", target, describe(e), err)
}

// carryOut is the helper's part.
func (o unmountOrder) carryOut(ctx context.Context, target string) error {
	if o.Flags == 0 {
		return mount.Unmount(ctx, target)
	}
	if err := unix.Unmount(target, o.Flags); err != nil {
		return fmt.Errorf("unmount %s with flags %#x: %w", target, o.Flags, err)
	}
	return nil
}
