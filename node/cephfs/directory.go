package cephfs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/internal/linux/cephmount"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// directory is a volume's place on this machine.
type directory struct {
	name    string // follows from the locator
	dir     string // of the mount
	locator access.CephFS
}

// volumeOf names a volume after what identifies it in all clusters. A
// subvolume's path has a UUID, so it is not used again.
func (a *Attacher) volumeOf(l access.CephFS) directory {
	cluster := l.ClusterID
	if cluster == "" {
		for _, m := range l.Monitors {
			cluster += m.String() + ","
		}
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{cluster, l.FS, l.Path}, "\x00")))
	return a.named(hex.EncodeToString(sum[:16]), l)
}

func (a *Attacher) named(name string, l access.CephFS) directory {
	return directory{name: name, dir: filepath.Join(a.mounts(), name), locator: l}
}

// mounts is the directory with the mounts, as the mount table names it.
func (a *Attacher) mounts() string {
	dir, err := filepath.EvalSymlinks(a.config.Dir)
	if err != nil {
		dir = filepath.Clean(a.config.Dir)
	}
	return filepath.Join(dir, "cephfs", a.config.Driver)
}

var namePattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// target returns the volume of a locator, or that of a device that was listed
// without one.
func (a *Attacher) target(t node.Target) (directory, error) {
	if t.Locator != nil {
		l, err := locatorOf(t)
		return a.volumeOf(l), err
	}
	if !namePattern.MatchString(t.Device.Backing) {
		return directory{}, errs.Errorf(errs.Internal, "the device %s is not that of a CephFS volume", errs.Quote(t.Device.Backing))
	}
	v := a.named(t.Device.Backing, access.CephFS{})
	if r, err := v.read(); err == nil {
		v.locator = r.locator()
	}
	return v, nil
}

func locatorOf(t node.Target) (access.CephFS, error) {
	l, ok := t.Locator.(access.CephFS)
	if !ok {
		return l, errs.Errorf(errs.Internal, "the locator %T is not that of a CephFS directory", t.Locator)
	}
	return l, nil
}

// ownPath is a subvolume that this project's engine created.
var ownPath = regexp.MustCompile(`^/volumes/[^/]+/cleat-vol-[0-9a-f]{32}/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func isOwnSubvolume(path string) bool { return ownPath.MatchString(path) }

// splitSnapshot splits a path into what can be mounted, and the rest, in a
// snapshot.
func splitSnapshot(path string) (parent, inside string) {
	const snapshots = "/.snap/"
	if i := strings.Index(path, snapshots); i >= 0 {
		return cmp.Or(path[:i], "/"), path[i+1:]
	}
	return path, ""
}

// path returns the volume's root.
func (v directory) path() string {
	_, inside := splitSnapshot(v.locator.Path)
	return filepath.Join(v.dir, inside)
}

func (v directory) device(e mount.Entry) node.Device {
	return node.Device{Path: v.path(), Major: uint32(e.Major), Minor: uint32(e.Minor), Backing: v.name}
}

// find returns the volume's mount. It does not access it.
func (v directory) find(ctx context.Context) (mount.Entry, bool, error) {
	e, mounted, err := mount.At(ctx, v.dir)
	if err == nil && mounted && e.FSType != cephmount.FSType {
		err = errs.Errorf(errs.Precondition, "%s is covered by a mount of another program (%s from %s); unmount it first", v.dir, e.FSType, e.Source)
	}
	return e, mounted, err
}

// identify records the mount's client, and asks the cluster for the volume's
// usage. Busy: Ceph sets the quota of a copy when it is complete.
func (v directory) identify() (cephmount.Usage, error) {
	r, err := v.read()
	if err != nil || r.Client == "" {
		r.Locator = access.Encode(v.locator)
		if r.Client, err = cephmount.ClientOf(v.dir); err == nil {
			err = v.write(r)
		}
		if err != nil {
			return cephmount.Usage{}, err
		}
	}
	usage, err := cephmount.UsageOf(v.path())
	if err == nil && usage.Quota == 0 && isOwnSubvolume(v.locator.Path) {
		err = errs.Errorf(errs.Busy, "the volume is still being copied: its directory %s has no quota yet", v.locator.Path)
	}
	return usage, err
}

func size(u cephmount.Usage) int64 { return cmp.Or(u.Quota, u.Used+u.Available) }

// isDead: the mount will not work any more. A fenced client gets EACCES, one
// after "umount -f" EIO. Without access to the directory, as after it was
// deleted, the cluster answers with EACCES too.
func isDead(err error) bool {
	for _, e := range []error{unix.EACCES, unix.EPERM, unix.ENOENT, unix.ESTALE, unix.EIO, unix.ESHUTDOWN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// record is what the mount table does not know.
type record struct {
	Locator map[string]string `json:"locator"`
	Client  string            `json:"client,omitempty"` // in debugfs; empty until mounted
}

func (r record) locator() access.CephFS {
	l, _ := access.Decode(r.Locator)
	c, _ := l.(access.CephFS)
	return c
}

// object names the volume in operations and their messages.
func (v directory) object() string { return cmp.Or(v.locator.Path, v.name) }

func (v directory) file() string { return v.dir + ".json" }

func (v directory) read() (r record, err error) {
	data, err := os.ReadFile(v.file())
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

func (v directory) write(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return durable.Write(v.file(), data)
}

// forget removes the directory of a volume that is not mounted, and its record.
func (v directory) forget() error {
	err := unix.Rmdir(v.dir)
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err == nil {
		err = durable.Remove(v.file())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s, which has no mount: %w", v.dir, err)
	}
	return nil
}
