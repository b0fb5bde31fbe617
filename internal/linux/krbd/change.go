package krbd

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// ErrFenced is returned for a device whose client is on the cluster's blocklist.
// Reads and writes of the device fail with EIO, as those of a damaged image do.
var ErrFenced = errors.New("the Ceph cluster has fenced this node's client (osd blocklist)")

// Flush writes the data of the page cache to the cluster. It blocks until the
// cluster answers. EIO: data was lost.
func (k *Kernel) Flush(ctx context.Context, d Device) error {
	f, err := k.Open(d)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := kernelcall.Sync(ctx, f); err != nil {
		return fmt.Errorf("flush %s: %w", d.Path, err)
	}
	return nil
}

// Unmap removes an unused device. It blocks until the cluster answers.
// Precondition: the device is in use, and unchanged. A missing one is no error.
func (k *Kernel) Unmap(ctx context.Context, d Device) error {
	err := holders.AwaitUnused(ctx, d.Major, d.Minor, func() (inUse bool, err error) {
		if err := k.verify(d); err != nil {
			return false, err
		}
		err = k.Write(ctx, k.bus("remove_single_major"), strconv.Itoa(d.ID), kernelcall.Key{})
		return errors.Is(err, unix.EBUSY), err
	})
	switch {
	case err == nil, errors.Is(err, ErrGone), errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return errs.Errorf(errs.Precondition, "unmap %s: the device is used by %s; unmount or close it there, then try again", d.Path, holders.OfDevice(ctx, d.Major, d.Minor))
	}
	return fmt.Errorf("unmap %s: %w", d.Path, err)
}

// verify makes sure that the number still is of the same map.
func (k *Kernel) verify(d Device) error {
	all, err := k.List()
	if err != nil {
		return err
	}
	for _, now := range all {
		if now.ID == d.ID && now.ImageID == d.ImageID && now.Cluster == d.Cluster && now.Instance == d.Instance {
			return nil
		}
	}
	return ErrGone
}

// Refresh reads the image's header, as the kernel does when the image changes.
// It blocks until the cluster answers. ErrFenced: the cluster refuses this client.
func (k *Kernel) Refresh(ctx context.Context, d Device) error {
	if err := k.Write(ctx, k.bus("devices", strconv.Itoa(d.ID), "refresh"), "1", kernelcall.Key{}); err != nil {
		err = fmt.Errorf("refresh %s: %w", d.Path, err)
		if errors.Is(err, unix.ESHUTDOWN) { // EBLOCKLISTED of the kernel's Ceph client
			err = fmt.Errorf("%w: %w", ErrFenced, err)
		}
		return err
	}
	return nil
}

// SetReadOnly makes a device refuse or accept writes, also one in use.
// Precondition: it was mapped read-only.
func (k *Kernel) SetReadOnly(d Device, readOnly bool) error {
	if d.MappedRO && !readOnly {
		return errs.Errorf(errs.Precondition, "%s was mapped read-only; unmap it and map it again for writing", d.Path)
	}
	f, err := k.Open(d)
	if err != nil {
		return err
	}
	defer f.Close()
	return blockdev.SetReadOnly(f, readOnly)
}
