package hostfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume/access"
)

// cephfs is a source: a directory of a Ceph file system, mounted by the kernel's
// client. No cluster was there to run it against: tested are the options, up to
// the kernel that takes them and finds no monitor.
type cephfs struct {
	mounts   *Mounts
	at       access.CephFS
	monitors []monitor
	readOnly bool
}

func newCephFS(m *Mounts, a access.CephFS, readOnly bool) (cephfs, error) {
	c := cephfs{mounts: m, at: a, readOnly: readOnly}
	for _, at := range a.Monitors {
		c.monitors = append(c.monitors, monitorOf(at))
	}
	if len(c.monitors) > 0 {
		return c, nil
	}
	if m.config.CephDir == "" {
		return cephfs{}, errs.Errorf(errs.Precondition, "%s: the locator names no monitors, and no directory is configured where cluster %s could be found", c, a.ClusterID)
	}
	var err error
	c.monitors, err = readMonitors(m.config.CephDir, a.ClusterID)
	if err != nil {
		return cephfs{}, errs.Errorf(errs.Precondition, "%s: the monitors of cluster %s: %w", c, a.ClusterID, err)
	}
	return c, nil
}

func (c cephfs) String() string {
	fs, cluster := c.at.FS, c.at.ClusterID
	if fs == "" {
		fs = "(the only one)"
	}
	if cluster == "" {
		cluster = "of " + cephAddrs(c.chosen())
	}
	return fmt.Sprintf("directory %s of CephFS %s, cluster %s (%s)", c.at.Path, fs, cluster, modeOf(c.readOnly))
}

// chosen are the addresses to use. The kernel speaks one protocol to all; the
// older is what it does unless told otherwise, so the newer serves where some
// cluster has no other.
func (c cephfs) chosen() []monitor {
	v1 := slices.DeleteFunc(slices.Clone(c.monitors), func(m monitor) bool { return m.v2 })
	if len(v1) > 0 {
		return v1
	}
	return c.monitors
}

func cephAddrs(all []monitor) string {
	words := make([]string, 0, len(all))
	for _, m := range all {
		words = append(words, m.addr.String())
	}
	return strings.Join(words, ",")
}

// order is for a kernel from 5.12 on. The source is in the older of its two
// syntaxes, which all of them take and which needs no fsid.
func (c cephfs) order() (cephOrder, error) {
	monitors := c.chosen()
	o := cephOrder{Source: cephAddrs(monitors) + ":" + c.at.Path, FS: c.at.FS, User: c.at.User, ReadOnly: c.readOnly}
	if monitors[0].v2 {
		o.Mode = "prefer-crc"
	}
	if len(o.Source) > maxSource {
		return o, errs.Errorf(errs.Invalid, "the monitors and the path have %d bytes together, %d are possible; name fewer monitors: %.64q...", len(o.Source), maxSource, o.Source)
	}
	if c.at.Key == "" {
		return o, nil
	}
	if c.mounts.config.KeyDir == "" {
		return o, errs.Errorf(errs.Precondition, "the locator names the key %s, and no directory of keys is configured", c.at.Key)
	}
	o.KeyDir, o.Key = c.mounts.config.KeyDir, c.at.Key
	return o, nil
}

// shown compares the directory, the file system, the user, whether it is
// read-only, and that one monitor is the same: a cluster replaces its monitors
// one by one.
func (c cephfs) shown(_ context.Context, e mount.Entry, _ []mount.Entry) (bool, error) {
	monitors, dir, ok := strings.Cut(e.Source, ":/")
	if !ok || e.FSType != "ceph" || "/"+dir != c.at.Path || e.ReadOnly() != c.readOnly {
		return false, nil
	}
	if c.at.FS != "" && !slices.Contains(e.SuperOptions, "mds_namespace="+c.at.FS) && !slices.Contains(e.SuperOptions, "fs="+c.at.FS) {
		return false, nil
	}
	if c.at.User != "" && !slices.Contains(e.SuperOptions, "name="+c.at.User) {
		return false, nil
	}
	words := strings.Split(monitors, ",")
	return slices.ContainsFunc(c.monitors, func(m monitor) bool { return slices.Contains(words, m.addr.String()) }), nil
}

func (c cephfs) mountAt(ctx context.Context, target string) error {
	o, err := c.order()
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return c.explain(c.mounts.run(ctx, order{Target: target, CephFS: &o}, c.mounts.config.Deadline))
}

func (c cephfs) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoAnswer), isUnreachable(err):
		return errs.Errorf(errs.Unavailable, "%s: %w: no monitor answers at %s; are they up, and can this machine reach them?", c, err, cephAddrs(c.chosen()))
	case errors.Is(err, unix.ENOENT):
		return errs.Errorf(errs.Precondition, "%s: %w: there is no such directory or file system", c, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOKEY):
		return errs.Errorf(errs.Precondition, "%s: %w: the cluster does not let this user in; look at cephUser, the key and its capabilities", c, err)
	case errors.Is(err, unix.EIO): // also for want of an answer: the kernel does not tell
		return errs.Errorf(errs.Unavailable, "%s: %w: no monitor or metadata server answers, at %s; are they up, and can this machine reach them?", c, err, cephAddrs(c.chosen()))
	}
	return fmt.Errorf("%s: %w", c, err)
}

// cephOrder is for a helper, which reads the key itself.
type cephOrder struct {
	Source   string `json:"source"`
	FS       string `json:"fs,omitempty"`
	User     string `json:"user,omitempty"`
	KeyDir   string `json:"keyDir,omitempty"`
	Key      string `json:"key,omitempty"` // name of a file in KeyDir
	Mode     string `json:"mode,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

func (o cephOrder) carryOut(ctx context.Context, target string) error {
	description := ""
	if o.Key != "" {
		key, err := readKey(o.KeyDir, o.Key, o.User)
		if err != nil {
			return err
		}
		// The type of key comes with the module, which this has loaded.
		if fd, err := unix.Fsopen("ceph", unix.FSOPEN_CLOEXEC); err == nil {
			unix.Close(fd)
		}
		description = fmt.Sprintf("cleat-%d-%s", os.Getpid(), filepath.Base(target))
		remove, err := key.intoKeyring(description)
		if err != nil {
			return err
		}
		defer remove()
		o.User = key.user
	}
	return mount.Mount(ctx, mount.Spec{Source: o.Source, Target: target, FSType: "ceph", ReadOnly: o.ReadOnly, Options: o.options(description)})
}

// options are the kernel's. Without a name it would take "guest"; Ceph's own
// programs take "admin".
func (o cephOrder) options(description string) []string {
	user := o.User
	if user == "" {
		user = "admin"
	}
	all := append(attributes(), "name="+user)
	if description != "" {
		all = append(all, "key="+description)
	}
	if o.FS != "" {
		all = append(all, "mds_namespace="+o.FS)
	}
	if o.Mode != "" {
		all = append(all, "ms_mode="+o.Mode)
	}
	return all
}
