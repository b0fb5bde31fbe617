//go:build ceph

package ceph

import (
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/ceph/go-ceph/cephfs"

	"github.com/cleatproject/cleat/errs"
)

// fsMount is the engine's own mount of the subvolume group, by libcephfs. When
// the metadata server has ended its session, as after an interruption of the
// network, the next use mounts again.
type fsMount struct {
	conn *Connection
	fs   string // name of the file system
	root string // path of the group
	// began is called with each new mount.
	began func(*cephfs.MountInfo)
	// id is the number of the file system, from its first mount.
	id int64

	mu      sync.Mutex
	current *mounted
}

// mounted is released by its last user.
type mounted struct {
	*cephfs.MountInfo
	users int
	ended bool
}

// use calls fn with the mount. Paths are relative to the group.
func (m *fsMount) use(fn func(*cephfs.MountInfo) error) error {
	for again := false; ; again = true {
		current, err := m.acquire()
		if err != nil {
			return err
		}
		err = fn(current.MountInfo)
		isEnded := is(err, syscall.ESHUTDOWN, syscall.ENOTCONN)
		m.release(current, isEnded)
		if !isEnded || again {
			return err
		}
	}
}

func (m *fsMount) acquire() (*mounted, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current == nil {
		info, err := m.mount()
		if err != nil {
			return nil, err
		}
		m.current = &mounted{MountInfo: info}
	}
	m.current.users++
	return m.current, nil
}

func (m *fsMount) mount() (*cephfs.MountInfo, error) {
	// A new mount is a new client, which the next controller has not fenced.
	if err := m.conn.checkUnfenced(); err != nil {
		return nil, err
	}
	info, err := cephfs.CreateFromRados(m.conn.rados)
	if err != nil {
		return nil, explain(err, "prepare a mount of file system %s", m.fs)
	}
	if err = info.SelectFilesystem(m.fs); err == nil {
		err = info.MountWithRoot(m.root)
	}
	if err == nil {
		if err = m.identify(info); err == nil {
			m.began(info)
			return info, nil
		}
		_ = info.Unmount()
		_ = info.Release()
		return nil, err
	}
	_ = info.Release()     // nothing is mounted
	if is(err, notFound) { // this is not about the object that the caller looks for
		return nil, errs.Errorf(errs.Unavailable, "mount %s of file system %s: %v: the file system or its subvolume group is not there now; what is in them is not known", m.root, m.fs, plain(err))
	}
	if is(err, syscall.EACCES, syscall.EPERM) {
		return nil, errs.Errorf(errs.Denied, "mount %s of file system %s: %w: the Ceph user of the controller needs the capability mds 'allow *', or for volumes without fences mds 'allow rw fsname=%[2]s path=%[1]s'", m.root, m.fs, plain(err))
	}
	if is(err, syscall.ETIMEDOUT) {
		return nil, errs.Errorf(errs.Unavailable, "mount %s of file system %s: %w: no metadata server answers; check them, and that the Ceph user has the capability mds 'allow *', because Ceph 20 does not answer a user without one", m.root, m.fs, plain(err))
	}
	return nil, explain(err, "mount %s of file system %s", m.root, m.fs)
}

// identify refuses another file system of the same name: that an object is not
// there says nothing.
func (m *fsMount) identify(info *cephfs.MountInfo) error {
	id, err := info.GetFsCid()
	if err != nil {
		return explain(err, "read the number of file system %s", m.fs)
	}
	if m.id != 0 && m.id != id {
		return errs.Errorf(errs.Precondition, "file system %s has the number %d and had %d: it was created again; restart the controller if it should serve the new one", m.fs, id, m.id)
	}
	m.id = id
	return nil
}

func (m *fsMount) release(used *mounted, isEnded bool) {
	m.mu.Lock()
	used.users--
	used.ended = used.ended || isEnded
	if used.ended && m.current == used {
		m.current = nil
	}
	last := used.ended && used.users == 0
	m.mu.Unlock()
	if last {
		m.unmount(used)
	}
}

func (m *fsMount) unmount(used *mounted) {
	err := used.Unmount()
	if released := used.Release(); err == nil {
		err = released
	}
	if err != nil {
		m.conn.logger.Warn("file system not unmounted", "fs", m.fs, "err", plain(err))
	}
}

// close unmounts. No call is in flight.
func (m *fsMount) close() {
	if m.current != nil {
		m.unmount(m.current)
	}
}

// subvolume is what the cluster says of a subvolume.
type subvolume struct {
	name string
	uuid string // empty: removed, only snapshots are left
	// isUnclear: there are several such directories, of creations that a killed
	// manager did not finish.
	isUnclear bool
	size      int64 // quota in bytes; 0: none yet
	record    *fsRecord
	// Attributes of its snapshots, by the hashes of their names.
	snapRecords map[string]fsSnapRecord
}

// names lists subvolumes with a prefix.
func (m *fsMount) names(prefix string) (all []string, err error) {
	err = m.use(func(i *cephfs.MountInfo) error {
		all, err = list(i, "/")
		return explain(err, "list the subvolumes of %s", m.root)
	})
	return slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, prefix) }), err
}

// directories is what reads of subvolumes need of a mount.
type directories interface {
	OpenDir(path string) (*cephfs.Directory, error)
	ListXattr(path string) ([]string, error)
	GetXattr(path, name string) ([]byte, error)
}

// list returns the entries of a directory.
func list(i directories, path string) (names []string, err error) {
	dir, err := i.OpenDir(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := dir.Close(); err == nil {
			err = closing
		}
	}()
	for {
		entry, err := dir.ReadDir()
		if err != nil || entry == nil {
			return names, err
		}
		if name := entry.Name(); name != "." && name != ".." {
			names = append(names, name)
		}
	}
}

// inspect reads a subvolume. The error is that of ENOENT if it does not exist.
func (m *fsMount) inspect(name string) (s *subvolume, err error) {
	err = m.use(func(i *cephfs.MountInfo) error {
		s = &subvolume{name: name, snapRecords: map[string]fsSnapRecord{}}
		return explain(s.load(i), "read subvolume %s", name)
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *subvolume) load(i directories) error {
	entries, err := list(i, s.path())
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(name string) bool { return !uuidPattern().MatchString(name) })
	if len(entries) > 0 {
		s.uuid, s.isUnclear = entries[0], len(entries) > 1
	}
	attributes, err := i.ListXattr(s.path())
	if err != nil {
		return err
	}
	for _, key := range attributes {
		snap, isSnap := strings.CutPrefix(key, attrSnapPrefix)
		if !isSnap && key != attrVolume {
			continue
		}
		text, err := i.GetXattr(s.path(), key)
		if is(err, syscall.ENODATA) {
			continue // the snapshot has just been removed
		}
		if err != nil {
			return err
		}
		if isSnap {
			if r, ok := decodeFSSnap(text, snap); ok {
				s.snapRecords[snap] = r
			}
		} else if s.record, err = decodeFS(text, s.uuid); err != nil {
			return err
		}
	}
	if s.uuid == "" {
		return nil
	}
	// After the record: the end of a copy sets the size, and then removes the copy
	// from the record.
	s.size, err = number(i, s.content(), "ceph.quota.max_bytes")
	if is(err, notFound) { // it has just been removed
		s.uuid, s.record, err = "", nil, nil
	}
	return err
}

func (s *subvolume) path() string    { return "/" + s.name }
func (s *subvolume) content() string { return s.path() + "/" + s.uuid }

// setRecord writes the record of a volume.
func (m *fsMount) setRecord(name string, r fsRecord) error { return m.set(name, attrVolume, encode(r)) }

func (m *fsMount) set(name, key, value string) error {
	return m.use(func(i *cephfs.MountInfo) error {
		return explain(i.SetXattr("/"+name, key, []byte(value), cephfs.XattrDefault), "record %s of subvolume %s", key, name)
	})
}

// removeUnfinished removes the empty directories that killed managers created in
// a subvolume without content.
func (m *fsMount) removeUnfinished(name string) error {
	return ignoreMissing(m.use(func(i *cephfs.MountInfo) error {
		entries, err := list(i, "/"+name)
		for _, entry := range entries {
			if err == nil && uuidPattern().MatchString(entry) {
				err = i.RemoveDir("/" + name + "/" + entry)
			}
		}
		return explain(err, "remove unfinished directories of subvolume %s", name)
	}))
}

// used returns the bytes of the files below a directory, as far as the metadata
// server has counted them.
func (m *fsMount) used(path string) (bytes int64, err error) {
	err = m.use(func(i *cephfs.MountInfo) error {
		bytes, err = number(i, path, "ceph.dir.rbytes")
		return explain(err, "read the usage of %s", path)
	})
	return bytes, err
}

// number returns a numeric attribute; 0 if it is not set.
func number(i directories, path, key string) (int64, error) {
	text, err := i.GetXattr(path, key)
	if is(err, syscall.ENODATA) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return parseNumber(key, string(text))
}
