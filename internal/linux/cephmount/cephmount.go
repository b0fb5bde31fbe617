// Package cephmount mounts directories of CephFS file systems with the kernel's
// client (Documentation/filesystems/ceph.rst of the kernel).
//
// All but StatusOf wait for the cluster, and end with its answer alone: a caller
// with a deadline runs them in the background.
package cephmount

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/kmod"
	"github.com/cleatproject/cleat/internal/linux/libceph"
)

// FSType is the type of the mounts in the mount table.
const FSType = "ceph"

// Spec describes a mount.
type Spec struct {
	libceph.Client
	FS       string // empty: the only one
	Path     string // absolute and clean
	Target   string // an existing directory
	ReadOnly bool
}

// maxOptions is the size of a page with its NUL.
const maxOptions = 4095

// Mount mounts a directory with a client instance of its own. It cannot be in a
// snapshot: the kernel finds ".snap" below a mount only. NotFound: the directory
// does not exist. Precondition: the capabilities do not include it, or the node
// is fenced. Unavailable: monitors or metadata servers do not answer, or refuse
// the user.
func Mount(ctx context.Context, s Spec) error {
	if err := s.check(); err != nil {
		return err
	}
	if err := ready(ctx); err != nil {
		return err
	}
	key, err := s.KernelKey("cleat/" + rand.Text())
	if err != nil {
		return err
	}
	source, options := s.Addresses()+":"+s.Path, s.options(key.Name)
	if len(options) > maxOptions || len(source) >= unix.PathMax {
		return errs.Errorf(errs.Invalid, "the path %s of the volume is too long for a mount", errs.Quote(s.Path))
	}
	var flags uintptr
	if s.ReadOnly {
		flags = unix.MS_RDONLY
	}
	// Not fsopen(2): fsconfig(2) limits the source to 255 bytes.
	return s.explain(ignoringSignals(func() error { return kernelcall.Mount(ctx, source, s.Target, FSType, flags, options, key) }))
}

// options is for the older syntax of the source, MONITORS:PATH, which all
// kernels accept. The newer one has the cluster's fsid, which locators lack, and
// the kernel does not compare it with the cluster's. recover_session is never
// set: a client that reconnects has another instance, which a fence of the
// recorded one does not hold.
func (s Spec) options(key string) string {
	options := s.Options(key)
	if s.FS != "" {
		options += ",mds_namespace=" + s.FS
	}
	return options
}

func (s Spec) check() error {
	if err := s.Check(); err != nil {
		return err
	}
	if !strings.HasPrefix(s.Path, "/") {
		return errs.Errorf(errs.Invalid, "the path %s is not absolute", errs.Quote(s.Path))
	}
	if s.FS == "" {
		return nil
	}
	return libceph.CheckName("file system", s.FS)
}

// ready has the kernel load the module, which registers the type of the key.
func ready(ctx context.Context) error {
	open := func() error {
		fd, err := unix.Fsopen(FSType, unix.FSOPEN_CLOEXEC)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	if open() == nil {
		return nil
	}
	cause := kmod.Load(ctx, "ceph")
	if err := open(); err != nil {
		return errs.Errorf(errs.Unsupported, "this kernel has no CephFS: %w; install the kernel's package with the module ceph on this node, or run `modprobe ceph`", errors.Join(err, cause))
	}
	return nil
}

// explain gives the kernel's error numbers their meaning; the kernel log has
// details.
func (s Spec) explain(err error) error {
	if unusable := s.UnusableKey(err); unusable != nil {
		return fmt.Errorf("mount %s of the CephFS file system %s: %w", errs.Quote(s.Path), errs.Quote(s.FS), unusable)
	}
	for _, c := range []struct {
		is   []error
		kind errs.Kind
		text string
	}{
		{[]error{unix.ENOENT, unix.ESTALE}, errs.NotFound, "the directory does not exist"},
		{[]error{unix.EACCES}, errs.Precondition, "the capabilities of client." + s.User + " do not include the directory (mds \"allow rw fsname=... path=...\"), or the cluster has fenced this node (ceph osd blocklist ls)"},
		{[]error{unix.EPERM, unix.ENOKEY, unix.EKEYREJECTED}, errs.Unauthenticated, "the cluster refuses client." + s.User + ": check user and key"},
		{[]error{unix.EHOSTUNREACH}, errs.Unavailable, "the file system does not exist, no metadata server is active, or the cluster refuses client." + s.User + " and its key; the kernel log has the reason"},
		{[]error{unix.ETIMEDOUT, unix.ENETUNREACH, unix.ECONNREFUSED, unix.ECONNRESET, unix.EIO, unix.EINTR}, errs.Unavailable, "the monitors " + s.Addresses() + " or the metadata server do not answer"},
		{[]error{unix.ESHUTDOWN}, errs.Precondition, "the cluster has fenced this node (ceph osd blocklist ls)"},
		{[]error{unix.EINVAL}, errs.Precondition, "the kernel refuses an option, see the kernel log"},
	} {
		for _, errno := range c.is {
			if errors.Is(err, errno) {
				return errs.Errorf(c.kind, "mount %s of the CephFS file system %s: %s (%w)", errs.Quote(s.Path), errs.Quote(s.FS), c.text, err)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("mount %s of the CephFS file system %s: %w", errs.Quote(s.Path), errs.Quote(s.FS), err)
	}
	return nil
}

// Sync writes all data of the mount at a directory to the cluster.
func Sync(ctx context.Context, dir string) error {
	if err := ignoringSignals(func() error { return kernelcall.SyncFS(ctx, dir) }); err != nil {
		return fmt.Errorf("write the data of %s to the cluster: %w", dir, err)
	}
	return nil
}

// Usage is what a directory has, in bytes.
type Usage struct {
	Quota     int64 // 0: it has none
	Used      int64 // by all files below, as the cluster last counted
	Available int64 // within the quota, or in the file system
}

// UsageOf asks the cluster for a directory's usage.
func UsageOf(dir string) (Usage, error) {
	var u Usage
	var err error
	if u.Quota, err = number(dir, "ceph.quota.max_bytes"); err != nil && !errors.Is(err, unix.ENODATA) {
		return u, err
	}
	if u.Used, err = number(dir, "ceph.dir.rbytes"); err != nil {
		return u, err
	}
	if u.Quota > 0 {
		u.Available = max(0, u.Quota-u.Used)
		return u, nil
	}
	var st unix.Statfs_t
	if err := ignoringSignals(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return u, fmt.Errorf("size of %s: %w", dir, err)
	}
	u.Available = int64(st.Bavail) * st.Bsize
	return u, nil
}

func number(dir, name string) (int64, error) {
	text, err := attribute(dir, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("attribute %s of %s is %s, not a number of bytes", name, dir, errs.Quote(text))
	}
	return n, nil
}

func attribute(dir, name string) (string, error) {
	value := make([]byte, 128)
	var n int
	err := ignoringSignals(func() (err error) {
		n, err = unix.Lgetxattr(dir, name, value)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("attribute %s of %s: %w", name, dir, err)
	}
	return string(value[:n]), nil
}

// ignoringSignals repeats calls that a signal interrupted: the Go runtime
// signals its own threads.
func ignoringSignals(call func() error) error {
	const tries = 10
	for range tries {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return unix.EINTR
}
