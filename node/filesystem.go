package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/internal/linux/growfs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

const oExcl = unix.O_EXCL

func isBusy(err error) bool { return errors.Is(err, unix.EBUSY) }

// filesystem is to be mounted at a path.
type filesystem struct {
	attachment *Attachment
	path       string
	capability volume.Capability
	readOnly   bool
	format     *formatting // nil: an existing file system is needed
	log        *slog.Logger
	scratch    string // for the growth of ext4
}

// mount mounts the file system, or adopts a mount. It grows the file system and
// applies the mount group first, so a visible mount is complete. Without
// formatting, it never creates a file system: only the engine knows that a
// volume is blank. A failed growth is not an error: notGrown says why the file
// system has its old size.
func (g filesystem) mount(ctx context.Context) (notGrown, err error) {
	d := g.attachment.Device
	if d.IsDirectory() {
		return nil, g.bind(ctx)
	}
	e, there, err := mountAt(ctx, g.path, d)
	if err != nil {
		return nil, err
	}
	if there && e.ReadOnly() != g.readOnly {
		if err := unmountAll(ctx, g.path, d); err != nil {
			return nil, err
		}
		there = false
	}
	if err := g.checkFlushes(mkfs.Type(g.capability.FSType)); err != nil {
		return nil, err
	}
	if !there && g.format != nil {
		if err := g.format.run(ctx, d); err != nil {
			return nil, err
		}
	}
	info, notGrown, err := g.identify(ctx, there)
	if err != nil {
		return nil, err
	}
	notGrown, err = g.show(ctx, info, there, notGrown)
	return notGrown, err
}

// show mounts an identified file system.
func (g filesystem) show(ctx context.Context, info mkfs.Info, there bool, notGrown error) (_, err error) {
	var tree *mount.Tree
	if there {
		tree, err = mount.Open(ctx, g.path)
	} else {
		tree, err = g.createRecovered(ctx, info)
	}
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	crashpoint.Hit("mount.created")
	if !g.readOnly && (info.Type != mkfs.Ext4 || notGrown != nil) {
		if notGrown, err = g.growTree(ctx, tree.Path(), info.Type, notGrown); err != nil {
			return nil, err
		}
		crashpoint.Hit("mount.grown")
	}
	if g.capability.MountGroup != nil {
		if err := g.applyMountGroup(ctx, tree.Path(), tree); err != nil {
			return nil, err
		}
		crashpoint.Hit("mount.group-given")
	}
	if there {
		return notGrown, nil
	}
	if err := tree.MoveTo(g.path); err != nil {
		return nil, err
	}
	crashpoint.Hit("mount.shown")
	return notGrown, nil
}

// identify rejects a file system of another type than requested. ext4 is
// checked and grows before it is mounted for writing: later growth needs
// CAP_SYS_RESOURCE, which containers can lack.
func (g filesystem) identify(ctx context.Context, mounted bool) (info mkfs.Info, notGrown, err error) {
	d := g.attachment.Device
	info, err = probe(ctx, d)
	damaged := errors.Is(err, mkfs.ErrDamaged)
	if err != nil && !damaged {
		return mkfs.Info{}, nil, fmt.Errorf("read the superblock of %s: %w", d.Path, err)
	}
	if !damaged {
		if err := g.check(info); err != nil {
			return mkfs.Info{}, nil, err
		}
		if info.Type != mkfs.Ext4 {
			return info, nil, nil
		}
	}
	if !mounted && !g.readOnly {
		err := g.prepareExt4(ctx)
		switch {
		case errors.Is(err, mkfs.ErrNotGrown) && ctx.Err() == nil:
			notGrown = err
		case err != nil:
			return mkfs.Info{}, nil, err
		}
		crashpoint.Hit("mount.grown-offline")
	}
	if damaged { // prepareExt4 can have undone an interrupted growth
		info, err = probe(ctx, d)
	}
	if err != nil {
		return mkfs.Info{}, nil, errs.Errorf(errs.Precondition, "the file system of the volume is damaged and cannot be mounted; nothing was changed: copy the volume, and repair the copy with fsck: %w", err)
	}
	return info, notGrown, g.check(info)
}

func (g filesystem) check(info mkfs.Info) error {
	wanted := g.capability.FSType
	switch {
	case info.Type == "" && info.Foreign != "":
		return errs.Errorf(errs.Precondition, "the volume contains %s, which is not a file system that this driver supports", info.Foreign)
	case info.Type == "":
		return errNoFilesystem
	case wanted != "" && wanted != string(info.Type):
		return errs.Errorf(errs.Precondition, "the volume has file system %s, the request asks for fs_type %s", info.Type, wanted)
	}
	return g.checkFlushes(info.Type)
}

func (g filesystem) checkFlushes(t mkfs.Type) error {
	if t != mkfs.Btrfs || !g.attachment.FlushUncertain {
		return nil
	}
	return errs.Errorf(errs.Precondition, "btrfs can be damaged on %s: the target has a volatile write cache, and the kernel can lose flushes when the connection breaks; use ext4 or xfs, a target without such a cache, or accept it with acceptFlushLoss in the volume_context", g.attachment.Device.Path)
}

func (g filesystem) create(ctx context.Context, t mkfs.Type) (*mount.Tree, error) {
	options := slices.Clone(g.capability.MountFlags)
	if t == mkfs.XFS {
		options = append(options, "nouuid") // clones have the same UUID
	}
	return mount.Create(ctx, mount.Spec{Source: g.attachment.Device.Path, FSType: string(t), Options: options, ReadOnly: g.readOnly})
}

// createRecovered mounts an XFS again if its log contains a growth, as after
// power loss: kernels before 6.13 keep the old size of the last allocation
// group in memory, and shut the file system down if it grows again in the same
// mount. An ext4 whose journal contains an error is checked, and mounted again.
func (g filesystem) createRecovered(ctx context.Context, before mkfs.Info) (*mount.Tree, error) {
	tree, err := g.create(ctx, before.Type)
	if err != nil || g.readOnly || before.Type == mkfs.Btrfs {
		return tree, err
	}
	again, err := g.hasRecovered(ctx, before)
	if err == nil && !again {
		return tree, nil
	}
	tree.Close()
	if err != nil {
		return nil, fmt.Errorf("read the superblock of %s after its log was replayed: %w", g.attachment.Device.Path, err)
	}
	if before.Type == mkfs.Ext4 {
		if err := g.prepareExt4(ctx); err != nil && !errors.Is(err, mkfs.ErrNotGrown) {
			return nil, err
		}
	}
	return g.create(ctx, before.Type)
}

// hasRecovered: the mount has found another size or an error in the log.
func (g filesystem) hasRecovered(ctx context.Context, before mkfs.Info) (bool, error) {
	head, err := readHead(ctx, g.attachment.Device.Path)
	if err != nil {
		return false, err
	}
	if before.Type == mkfs.Ext4 {
		return mkfs.NeedsCheck(head)
	}
	now, err := mkfs.Probe(head)
	return now.Size != before.Size, err
}

// applyMountGroup applies VOLUME_MOUNT_GROUP, if needed with a read-only file
// system made writable. tree is nil for a directory of a shared file system.
func (g filesystem) applyMountGroup(ctx context.Context, path string, tree *mount.Tree) error {
	gid := *g.capability.MountGroup
	given, err := isGroupApplied(path, gid)
	if err != nil || given {
		return err
	}
	switch {
	case g.capability.Mode == volume.MultiNodeReaderOnly:
		return errs.Errorf(errs.Precondition, "volume_mount_group %d cannot be applied: several nodes read the volume, and no node changes it; set the group of its files while one node writes it (ReadWriteOnce), or omit the group (fsGroup)", gid)
	case !g.readOnly || tree == nil:
		return g.applyGroup(ctx, path, gid)
	}
	if err := tree.SetReadOnly(false); err != nil {
		return err
	}
	return errors.Join(g.applyGroup(ctx, path, gid), tree.SetReadOnly(true))
}

func (g filesystem) prepareExt4(ctx context.Context) error {
	d := g.attachment.Device
	free, err := isUnused(ctx, d)
	if err != nil {
		return err
	}
	if !free {
		return checkIdle(d.Path) // in use elsewhere; grows at the next stage
	}
	if err := mkfs.CheckAndGrow(ctx, mkfs.GrowRequest{Device: d.Path, Scratch: g.scratch}); err != nil {
		return fmt.Errorf("check and grow the file system before it is mounted: %w", err)
	}
	return nil
}

// growTree grows a mounted file system. It is an error if the file system is
// of no use then.
func (g filesystem) growTree(ctx context.Context, path string, t mkfs.Type, notGrown error) (_, err error) {
	err = growMounted(ctx, path, t, g.attachment.Device, g.attachment.Size)
	switch {
	case err == nil:
		return nil, nil
	case ctx.Err() != nil:
		return nil, err
	case notGrown != nil && errors.Is(err, growfs.ErrNeedsSysResource):
		return notGrown, nil
	}
	faults, faultsErr := fsinfo.Errors(ctx, path, t)
	if faultsErr != nil || faults.Shutdown {
		return nil, errors.Join(err, faultsErr)
	}
	return errors.Join(notGrown, err), nil
}

// manyGroups of XFS are what 40 times the first size has.
const manyGroups = 160

// warnGroups never refuses: the file system works.
func (m *Manager) warnGroups(ctx context.Context, id volume.ID, d Device, size int64) {
	head, err := readHead(ctx, d.Path)
	if err != nil {
		return // the file system is mounted, and the next reader reports it
	}
	if n, err := mkfs.AllocationGroups(head, size); err == nil && n >= manyGroups {
		m.log.WarnContext(ctx, "XFS has grown to many allocation groups, copy its data to a new volume", "volume", id, "groups", n)
	}
}

func growMounted(ctx context.Context, path string, t mkfs.Type, d Device, size int64) error {
	full, err := isFull(ctx, d, size)
	if err != nil || full {
		return err
	}
	if _, err := growfs.Grow(ctx, path, t); err != nil {
		return fmt.Errorf("grow the file system: %w", err)
	}
	return nil
}

func probe(ctx context.Context, d Device) (mkfs.Info, error) {
	head, err := readHead(ctx, d.Path)
	if err != nil {
		return mkfs.Info{}, err
	}
	return mkfs.Probe(head)
}

// isFull: the file system has its device's size.
func isFull(ctx context.Context, d Device, size int64) (bool, error) {
	head, err := readHead(ctx, d.Path)
	if err != nil {
		return false, err
	}
	return mkfs.IsFull(head, size)
}

// headSize contains all superblocks; a multiple of any sector size.
const headSize = 128 << 10

// readHead uses O_DIRECT: a mounted file system's superblock can be
// inconsistent in the page cache.
func readHead(ctx context.Context, path string) (io.ReaderAt, error) {
	head, err := kernelcall.ReadDirect(ctx, path, headSize)
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(head), nil
}

func hasReadOnlyFlag(flags []string) bool {
	perMount, _, err := mount.SplitOptions(flags)
	readOnly := false
	for _, flag := range perMount {
		switch flag {
		case "ro":
			readOnly = true
		case "rw":
			readOnly = false
		}
	}
	return err == nil && readOnly
}
