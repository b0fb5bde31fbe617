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

// unmountRequest has flags for umount2(2); 0 uses mount.Unmount.
type unmountRequest struct {
	Flags int `json:"flags,omitempty"`
}

// Unmount unmounts Path(name), and removes an empty mount point. It is
// idempotent. Precondition (and mount.ErrBusy): the mount is in use; the
// message names the processes. If the server does not respond, the unmount is
// forced, and finally lazy: processes that still use the mount lose unwritten
// data. The caller must remove the device from SNAP first.
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
		return fmt.Errorf("%w (open files of a SNAP process in another container are not shown: remove its device first)", err)
	}
	if err != nil {
		return err
	}
	removeMountPoint(m.log, target)
	return nil
}

func isRemote(fsType string) bool {
	return fsType == "ceph" || strings.HasPrefix(fsType, "nfs") || strings.HasPrefix(fsType, "fuse")
}

// unmountRemote escalates to a forced, then a lazy unmount after timeouts only.
func (m *Mounts) unmountRemote(ctx context.Context, target string, e mount.Entry) error {
	var err error
	for _, step := range []struct {
		flags int
		bound time.Duration
		what  string
	}{
		{0, m.config.Deadline / 2, ""},
		{unix.MNT_FORCE | unix.UMOUNT_NOFOLLOW, m.config.Deadline / 4, "forced unmount"},
		{unix.MNT_DETACH | unix.UMOUNT_NOFOLLOW, m.config.Deadline / 4, "lazy unmount, unwritten data is lost unless the server recovers"},
	} {
		if step.what != "" {
			m.log.Warn("server of mount does not respond, escalating unmount", "path", target, "source", e.Source, "action", step.what, "err", err)
		}
		err = m.run(ctx, helperRequest{Target: target, Unmount: &unmountRequest{step.flags}}, step.bound)
		_, mounted, look := mount.At(context.WithoutCancel(ctx), target)
		switch {
		case look != nil:
			return look
		case !mounted:
			if err != nil { // the kernel still cleans up the superblock
				m.log.Warn("unmounted, but releasing the file system timed out", "path", target, "source", e.Source, "err", err)
			}
			return nil
		case err == nil:
			return errs.Errorf(errs.Precondition, "unmount %s: another program mounted there again", target)
		case ctx.Err() != nil:
			return fmt.Errorf("unmount %s: %w", target, err)
		case step.flags == 0 && !errors.Is(err, errNoAnswer):
			return err
		}
	}
	return fmt.Errorf("unmount %s (%s): %w", target, describe(e), err)
}

func (o unmountRequest) execute(ctx context.Context, target string) error {
	if o.Flags == 0 {
		return mount.Unmount(ctx, target)
	}
	if err := unix.Unmount(target, o.Flags); err != nil {
		return fmt.Errorf("unmount %s with flags %#x: %w", target, o.Flags, err)
	}
	return nil
}
