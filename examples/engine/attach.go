package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// attacher implements node.Attacher: a loop device for each file. The kernel knows what
// is attached.
type attacher struct {
	share string
	mu    sync.Mutex // of Attach: one device for each file
}

// Lock implements node.Attacher. Nothing copies a volume.
func (a *attacher) Lock(context.Context, node.Target) (unlock func(), err error) {
	return func() {}, nil
}

func name(t node.Target) string {
	if f, ok := t.Locator.(access.File); ok {
		return f.Name
	}
	return t.Device.Backing
}

type loopDevice struct {
	Name     string `json:"name"`
	BackFile string `json:"back-file"`
	RO       bool   `json:"ro"`
}

// held returns the loop devices of files of the share, by name of the file.
func (a *attacher) held(ctx context.Context) (map[string]loopDevice, error) {
	out, err := losetup(ctx, "--list", "--json", "--output", "NAME,BACK-FILE,RO")
	if err != nil || len(out) == 0 {
		return nil, err
	}
	var list struct {
		LoopDevices []loopDevice `json:"loopdevices"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("losetup --list: %w", err)
	}
	found := map[string]loopDevice{}
	for _, l := range list.LoopDevices {
		// The mounts of a container that has ended are gone: the path then begins at the share.
		dir, file := filepath.Split(strings.TrimSuffix(l.BackFile, " (deleted)"))
		if filepath.Clean(dir) == a.share || dir == "/" && strings.HasSuffix(file, poolID[24:]) { // volume.NewID
			found[file] = l
		}
	}
	return found, nil
}

func losetup(ctx context.Context, args ...string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "losetup", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
}

func (l loopDevice) device(name string) (node.Device, error) {
	var st unix.Stat_t
	if err := unix.Stat(l.Name, &st); err != nil {
		return node.Device{}, err
	}
	return node.Device{Path: l.Name, Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev), Backing: name}, nil
}

// Inspect implements node.Attacher.
func (a *attacher) Inspect(ctx context.Context, t node.Target) (node.Info, error) {
	info := node.Info{Presence: node.Present, Backing: name(t)}
	if strings.Contains(name(t), "/") { // of a PersistentVolume that a user wrote
		return info, errs.Errorf(errs.Invalid, "%s is not the name of a volume's file", errs.Quote(name(t)))
	}
	held, err := a.held(ctx)
	if err != nil {
		return info, err
	}
	if l, attached := held[name(t)]; attached {
		info.ReadOnly = l.RO
		if info.Device, err = l.device(name(t)); err != nil {
			return info, err
		}
	}
	switch st, err := os.Stat(filepath.Join(a.share, name(t))); {
	case errors.Is(err, fs.ErrNotExist):
		info.Presence, info.Backing, info.Problem = node.Missing, "", errs.Errorf(errs.NotFound, "%s has no file %s", a.share, errs.Quote(name(t)))
	case err != nil:
		info.Presence, info.Problem = node.Unreachable, errs.Errorf(errs.Unavailable, "%w", err)
	default:
		info.Size, info.Allocated = st.Size(), st.Size()
	}
	return info, nil
}

// Attach implements node.Attacher.
func (a *attacher) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	info, err := a.Inspect(ctx, t)
	if err == nil {
		err = info.Problem
	}
	if err == nil && info.Device.IsZero() {
		_, err = losetup(ctx, "--find", "--nooverlap", "--direct-io=on", filepath.Join(a.share, name(t)))
	}
	if err == nil {
		err = a.SetReadOnly(ctx, t, use.ReadOnly)
	}
	if err == nil {
		info, err = a.Inspect(ctx, t)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(info.Device.Path)
	return &node.Attachment{Device: info.Device, Size: info.Size, File: f}, err
}

// withDevice calls do with the volume's device.
func (a *attacher) withDevice(ctx context.Context, t node.Target, flags int, do func(device *os.File) error) error {
	held, err := a.held(ctx)
	if err != nil {
		return err
	}
	l, attached := held[name(t)]
	if !attached {
		return errs.Errorf(errs.Precondition, "volume %s has no device", errs.Quote(name(t)))
	}
	f, err := os.OpenFile(l.Name, flags, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(f), f.Close())
}

// Detach implements node.Attacher. O_EXCL fails while the device is mounted or held.
func (a *attacher) Detach(ctx context.Context, t node.Target) error {
	held, err := a.held(ctx)
	if _, attached := held[name(t)]; err != nil || !attached {
		return err
	}
	err = a.withDevice(ctx, t, os.O_RDONLY|unix.O_EXCL, func(device *os.File) error {
		return errors.Join(device.Sync(), unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0))
	})
	if errors.Is(err, unix.EBUSY) {
		return errs.Errorf(errs.Precondition, "the device of volume %s is in use: %w", errs.Quote(name(t)), err)
	}
	if err == nil {
		held, err = a.held(ctx)
	}
	if l, attached := held[name(t)]; err == nil && attached { // the kernel removes it when it is closed
		return errs.Errorf(errs.Busy, "another program has opened %s of volume %s for a moment; repeat the call", l.Name, errs.Quote(name(t)))
	}
	return err
}

// Resize implements node.Attacher.
func (a *attacher) Resize(ctx context.Context, t node.Target) (size int64, err error) {
	err = a.withDevice(ctx, t, os.O_RDONLY, func(device *os.File) error {
		if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
			return fmt.Errorf("LOOP_SET_CAPACITY: %w", err)
		}
		size, err = device.Seek(0, io.SeekEnd)
		return err
	})
	return size, err
}

// SetReadOnly implements node.Attacher.
func (a *attacher) SetReadOnly(ctx context.Context, t node.Target, readOnly bool) error {
	return a.withDevice(ctx, t, os.O_RDONLY, func(device *os.File) error {
		value := 0
		if readOnly {
			value = 1
		}
		return unix.IoctlSetPointerInt(int(device.Fd()), unix.BLKROSET, value)
	})
}

// Held implements node.Attacher.
func (a *attacher) Held(ctx context.Context) (all []node.Held, err error) {
	held, err := a.held(ctx)
	for name, l := range held {
		d, failed := l.device(name)
		err = errors.Join(err, failed)
		all = append(all, node.Held{Volume: volume.ID(name), Locator: access.File{Pool: poolID, Name: name}, Device: d})
	}
	return all, err
}
