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

// filesystem is the file system of a volume, to be mounted at a path.
type filesystem struct {
	attachment *Attachment
	path       string
	capability volume.Capability
	readOnly   bool
}

// mount mounts the file system, or adopts the mount that exists. It grows it and
// gives it to its group where nobody can see it, and shows it at the path last:
// a mount there is complete. It never creates a file system: only the engine
// knows that a volume is blank.
func (g filesystem) mount(ctx context.Context) error {
	d := g.attachment.Device
	e, there, err := mountAt(ctx, g.path, d)
	if err != nil {
		return err
	}
	if there && e.ReadOnly() != g.readOnly {
		if err := unmountAll(ctx, g.path, d); err != nil {
			return err
		}
		there = false
	}
	info, err := g.recognise(ctx, there)
	if err != nil {
		return err
	}
	var tree *mount.Tree
	if there {
		tree, err = mount.Open(ctx, g.path)
	} else {
		tree, err = g.createRecovered(ctx, info)
	}
	if err != nil {
		return err
	}
	defer tree.Close()
	crashpoint.Hit("mount.created")
	if !g.readOnly && info.Type != mkfs.Ext4 {
		if err := growMounted(ctx, tree.Path(), info.Type, d, g.attachment.Size); err != nil {
			return err
		}
		crashpoint.Hit("mount.grown")
	}
	if g.capability.MountGroup != nil {
		if err := g.giveToGroup(ctx, tree); err != nil {
			return err
		}
		crashpoint.Hit("mount.group-given")
	}
	if there {
		return nil
	}
	if err := tree.MoveTo(g.path); err != nil {
		return err
	}
	crashpoint.Hit("mount.shown")
	return nil
}

// recognise returns which file system the device holds, and refuses another one
// than the requested. An ext4 that is mounted for writing grows here: in use it
// could do so only with a capability that containers lack.
func (g filesystem) recognise(ctx context.Context, mounted bool) (mkfs.Info, error) {
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
		if damaged { // by an interrupted growth, perhaps, which is repaired now
			info, err = probe(d)
		}
	}
	if err != nil {
		return mkfs.Info{}, errs.Errorf(errs.Precondition, "the file system of the volume is damaged and cannot be mounted: %w", err)
	}
	return info, g.check(info)
}

func (g filesystem) check(info mkfs.Info) error {
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

func (g filesystem) create(ctx context.Context, t mkfs.Type) (*mount.Tree, error) {
	options := slices.Clone(g.capability.MountFlags)
	if t == mkfs.XFS {
		options = append(options, "nouuid") // a clone has the UUID of its source
	}
	return mount.Create(ctx, mount.Spec{Source: g.attachment.Device.Path, FSType: string(t), Options: options, ReadOnly: g.readOnly})
}

// createRecovered mounts what was recognised. An XFS whose log replays a growth,
// as after a power cut, is mounted a second time: kernels before 6.13 keep the
// old size of its last allocation group in memory, and shut it down when it
// grows again in that mount.
func (g filesystem) createRecovered(ctx context.Context, before mkfs.Info) (*mount.Tree, error) {
	tree, err := g.create(ctx, before.Type)
	if err != nil || before.Type != mkfs.XFS || g.readOnly {
		return tree, err
	}
	now, err := probe(g.attachment.Device)
	if err == nil && now.Size == before.Size {
		return tree, nil
	}
	tree.Close()
	if err != nil {
		return nil, fmt.Errorf("read the superblock of %s after its log was replayed: %w", g.attachment.Device.Path, err)
	}
	return g.create(ctx, before.Type)
}

// giveToGroup carries out VOLUME_MOUNT_GROUP. A read-only file system is
// writable meanwhile, if anything has to be changed.
func (g filesystem) giveToGroup(ctx context.Context, tree *mount.Tree) error {
	gid := *g.capability.MountGroup
	given, err := isGiven(tree.Path(), gid)
	if err != nil || given {
		return err
	}
	if !g.readOnly {
		return give(ctx, tree.Path(), gid)
	}
	if err := tree.SetReadOnly(false); err != nil {
		return err
	}
	return errors.Join(give(ctx, tree.Path(), gid), tree.SetReadOnly(true))
}

// growUnmounted grows an ext4 that is not mounted.
func growUnmounted(ctx context.Context, d Device) error {
	free, err := isUnused(ctx, d)
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
// superblock of a mounted file system can be between two states.
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
