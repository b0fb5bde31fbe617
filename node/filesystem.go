package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/growfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

const oExcl = unix.O_EXCL

func isBusy(err error) bool { return errors.Is(err, unix.EBUSY) }

// mounting is a file system to be brought to a path.
type mounting struct {
	attachment *Attachment
	path       string
	capability volume.Capability
	readOnly   bool
}

// run mounts the file system, or adopts the mount that is there, and returns
// its type. It never makes a file system: that is the engine's alone.
func (g mounting) run(ctx context.Context) (mkfs.Type, error) {
	d := g.attachment.Device
	e, there, err := mountAt(ctx, g.path, d)
	if err != nil {
		return "", err
	}
	if there && e.ReadOnly() != g.readOnly {
		if err := unmountAll(ctx, g.path, d); err != nil {
			return "", err
		}
		there = false
	}
	info, err := g.recognise(ctx, there)
	if err != nil {
		return "", err
	}
	t := info.Type
	if !there {
		if err := g.mountRecovered(ctx, info); err != nil {
			return "", err
		}
	}
	crashpoint.Hit("mount.mounted")
	if !g.readOnly && t != mkfs.Ext4 {
		if err := growMounted(ctx, g.path, t, d, g.attachment.Size); err != nil {
			return "", err
		}
		crashpoint.Hit("mount.grown")
	}
	if g.capability.MountGroup != nil {
		if err := g.giveToGroup(ctx); err != nil {
			return "", err
		}
		crashpoint.Hit("mount.group-given")
	}
	return t, nil
}

// recognise tells which file system the device carries and whether it is the
// one that is wanted. An ext4 that is to be mounted for writing grows on the
// way: in use it could do so only with a capability that containers lack.
func (g mounting) recognise(ctx context.Context, mounted bool) (mkfs.Info, error) {
	d := g.attachment.Device
	info, err := probe(d)
	damaged := errors.Is(err, mkfs.ErrDamaged)
	if err != nil && !damaged {
		return mkfs.Info{}, fmt.Errorf("read the superblock of %s: %w", d.Path, err)
	}
	if !damaged {
		if err := g.check(info); err != nil {
			return mkfs.Info{}, err
		}
		if info.Type != mkfs.Ext4 {
			return info, nil
		}
	}
	if !mounted && !g.readOnly {
		if err := growUnmounted(ctx, d); err != nil {
			return mkfs.Info{}, err
		}
		crashpoint.Hit("mount.grown-offline")
		if damaged { // it may have been a growth cut half-way, which is mended now
			info, err = probe(d)
		}
	}
	if err != nil {
		return mkfs.Info{}, errs.Errorf(errs.Precondition, "the file system of the volume is damaged and cannot be mounted: %w", err)
	}
	return info, g.check(info)
}

func (g mounting) check(info mkfs.Info) error {
	wanted := g.capability.FSType
	switch {
	case info.Type == "" && info.Foreign != "":
		return errs.Errorf(errs.Precondition, "the volume holds %s, which is not a file system that this driver mounts", info.Foreign)
	case info.Type == "":
		return errs.Errorf(errs.Precondition, "the volume has no file system: it was created as block; use access type block")
	case wanted != "" && wanted != string(info.Type):
		return errs.Errorf(errs.Precondition, "the volume has file system %s, the request asks for fs_type %s", info.Type, wanted)
	}
	return nil
}

func (g mounting) mount(ctx context.Context, t mkfs.Type) error {
	options := slices.Clone(g.capability.MountFlags)
	if t == mkfs.XFS {
		options = append(options, "nouuid") // a clone has the UUID of its source
	}
	return mount.Mount(ctx, mount.Spec{
		Source: g.attachment.Device.Path, Target: g.path, FSType: string(t), Options: options, ReadOnly: g.readOnly,
	})
}

// mountRecovered mounts what was recognised. An XFS whose log brings a growth
// back, as after a power cut, is mounted a second time: kernels before 6.13 keep
// the old size of its last allocation group in memory, and shut it down when it
// is to grow again in that mount.
func (g mounting) mountRecovered(ctx context.Context, before mkfs.Info) error {
	if err := g.mount(ctx, before.Type); err != nil || before.Type != mkfs.XFS || g.readOnly {
		return err
	}
	now, err := probe(g.attachment.Device)
	if err != nil {
		return fmt.Errorf("read the superblock of %s after its log was recovered: %w", g.attachment.Device.Path, err)
	}
	if now.Size == before.Size {
		return nil
	}
	if err := unmountAll(ctx, g.path, g.attachment.Device); err != nil {
		return fmt.Errorf("mount the file system again after its log was replayed: %w", err)
	}
	return g.mount(ctx, before.Type)
}

// giveToGroup carries out VOLUME_MOUNT_GROUP. On a read-only mount it makes
// the file system writable for as long as that takes, if it takes anything.
func (g mounting) giveToGroup(ctx context.Context) error {
	gid := *g.capability.MountGroup
	given, err := isGiven(g.path, gid)
	if err != nil || given {
		return err
	}
	if !g.readOnly {
		return give(ctx, g.path, gid)
	}
	if err := mount.Remount(ctx, g.path, false); err != nil {
		return err
	}
	return errors.Join(give(ctx, g.path, gid), mount.Remount(context.WithoutCancel(ctx), g.path, true))
}

// growUnmounted grows an ext4 that nobody has mounted.
func growUnmounted(ctx context.Context, d Device) error {
	free, err := exclusively(ctx, d)
	if err != nil || !free {
		return err // mounted elsewhere: it grows at the next stage
	}
	if err := mkfs.GrowOffline(ctx, d.Path, mkfs.Ext4); err != nil {
		return fmt.Errorf("check and grow the file system before it is mounted: %w", err)
	}
	return nil
}

// growMounted grows a file system in use.
func growMounted(ctx context.Context, path string, t mkfs.Type, d Device, size int64) error {
	full, err := isFull(d, size)
	if err != nil || full {
		return err
	}
	if _, err := growfs.Grow(ctx, path, t); err != nil {
		return fmt.Errorf("grow the file system: %w", err)
	}
	return nil
}

// probe reads what file system a device carries.
func probe(d Device) (mkfs.Info, error) {
	head, err := readHead(d.Path)
	if err != nil {
		return mkfs.Info{}, err
	}
	return mkfs.Probe(head)
}

// isFull reports whether a file system has grown as far as its device allows.
func isFull(d Device, size int64) (bool, error) {
	head, err := readHead(d.Path)
	if err != nil {
		return false, err
	}
	return mkfs.IsFull(head, size)
}

// headSize is how much of a device holds superblocks; a multiple of any sector.
const headSize = 128 << 10

// readHead reads the beginning of a device past the page cache: there the
// superblock of a mounted file system may be half-way between two states.
func readHead(path string) (io.ReaderAt, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	aligned, err := unix.Mmap(-1, 0, headSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("memory to read %s: %w", path, err)
	}
	defer func() { _ = unix.Munmap(aligned) }()
	n, err := f.ReadAt(aligned, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return bytes.NewReader(bytes.Clone(aligned[:n])), nil
}

// asksReadOnly reports whether mount flags ask for a read-only mount.
func asksReadOnly(flags []string) bool {
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
