package hostfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume/access"
)

// cephfs is a directory of a CephFS file system, mounted by the kernel client.
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
		return cephfs{}, errs.Errorf(errs.Precondition, "%s: the locator has no monitors, and no configuration directory is set to find those of cluster %s", c, a.ClusterID)
	}
	var err error
	c.monitors, err = readMonitors(m.config.CephDir, a.ClusterID)
	if err != nil {
		return cephfs{}, errs.Errorf(errs.Precondition, "%s: read the monitors of cluster %s: %w", c, a.ClusterID, err)
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

// chosen returns the addresses to use. The kernel uses one protocol for all
// monitors: msgr1, unless the cluster has msgr2 only.
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

// mountRequest returns the request for a kernel from 5.12 on. All kernels accept the
// older syntax of the source, which needs no fsid.
func (c cephfs) mountRequest() (cephMount, error) {
	monitors := c.chosen()
	o := cephMount{Source: cephAddrs(monitors) + ":" + c.at.Path, FS: c.at.FS, User: c.at.User, ReadOnly: c.readOnly}
	if monitors[0].v2 {
		o.Mode = "prefer-crc"
	}
	if len(o.Source) > maxSource {
		return o, errs.Errorf(errs.Invalid, "monitors and path have %d bytes in total, at most %d are allowed; use fewer monitors: %.64q...", len(o.Source), maxSource, o.Source)
	}
	key := cmp.Or(c.at.Key, c.keyOfCluster())
	if key == "" {
		return o, nil
	}
	if c.mounts.config.KeyDir == "" {
		return o, errs.Errorf(errs.Precondition, "no key directory is configured for key %s of the locator", key)
	}
	o.KeyDir, o.Key = c.mounts.config.KeyDir, key
	return o, nil
}

// keyOfCluster returns the name of the key for volumes that name none, as those of
// cleat csi: the clusterID, or "" if there is no such file.
func (c cephfs) keyOfCluster() string {
	if c.at.ClusterID == "" || c.mounts.config.KeyDir == "" {
		return ""
	}
	root, err := os.OpenRoot(c.mounts.config.KeyDir)
	if err == nil {
		defer root.Close()
		_, err = root.Stat(c.at.ClusterID)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return c.at.ClusterID // readKey says why it cannot be read
}

// shown requires only one common monitor: a cluster replaces its monitors one
// by one.
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
	o, err := c.mountRequest()
	if err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return c.explain(c.mounts.run(ctx, helperRequest{Target: target, CephFS: &o}, c.mounts.config.Deadline))
}

func (c cephfs) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoAnswer), isUnreachable(err):
		return errs.Errorf(errs.Unavailable, "%s: %w: no monitor responds at %s: check that they are up and reachable from this machine", c, err, cephAddrs(c.chosen()))
	case errors.Is(err, unix.ENOENT):
		return errs.Errorf(errs.Precondition, "%s: %w: the directory or file system does not exist", c, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOKEY):
		return errs.Errorf(errs.Precondition, "%s: %w: the cluster denies access: check cephUser, the key and its capabilities", c, err)
	case errors.Is(err, unix.ENOPKG):
		return errs.Errorf(errs.Precondition, "%s: %w: the kernel lacks a part of its cryptography that the key needs: install the modules authenc and cts, or use a key of type aes", c, err)
	case errors.Is(err, unix.EIO): // also set by the kernel on timeouts
		return errs.Errorf(errs.Unavailable, "%s: %w: no monitor or metadata server responds at %s: check that they are up and reachable from this machine", c, err, cephAddrs(c.chosen()))
	}
	return fmt.Errorf("%s: %w", c, err)
}

// cephMount is the request to a helper, which reads the key.
type cephMount struct {
	Source   string `json:"source"`
	FS       string `json:"fs,omitempty"`
	User     string `json:"user,omitempty"`
	KeyDir   string `json:"keyDir,omitempty"`
	Key      string `json:"key,omitempty"` // file in KeyDir
	Mode     string `json:"mode,omitempty"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

func (o cephMount) execute(ctx context.Context, target string) error {
	description := ""
	if o.Key != "" {
		key, err := readKey(o.KeyDir, o.Key, o.User)
		if err != nil {
			return err
		}
		// Fsopen loads the ceph module, which registers the key type.
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

// options sets the default user "admin", as Ceph's programs do; the kernel's
// default is "guest".
func (o cephMount) options(description string) []string {
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
