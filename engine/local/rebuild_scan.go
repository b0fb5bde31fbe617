package local

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// records are the contents of a rebuilt store.
type records struct {
	volumes   map[volume.ID]volumeRecord
	snapshots map[volume.SnapshotID]snapshotRecord
	groups    map[volume.GroupID]groupRecord
}

func (r records) put(tx *store.Tx) error {
	for id, v := range r.volumes {
		if err := errors.Join(volumeBucket.Put(tx, string(id), v), volumeNameBucket.Put(tx, v.Name, id)); err != nil {
			return err
		}
	}
	for id, s := range r.snapshots {
		if err := putNewSnapshot(tx, id, s); err != nil {
			return err
		}
		if s.Group != "" {
			continue
		}
		if err := snapshotNameBucket.Put(tx, s.Name, id); err != nil {
			return err
		}
	}
	for id, g := range r.groups {
		if err := errors.Join(groupBucket.Put(tx, string(id), g), groupNameBucket.Put(tx, g.Name, id)); err != nil {
			return err
		}
	}
	return nil
}

// scan makes records from files.
type scan struct {
	*pool
	records
	objects []RebuiltObject
	ignored []IgnoredFile
	names   map[string]string // "kind/name" to id
}

// scanFiles makes records of the files in volumes and snapshots. A creation is
// answered only after its file has left incoming.
func (p *pool) scanFiles() (*scan, error) {
	s := &scan{pool: p, names: map[string]string{}, records: records{
		volumes: map[volume.ID]volumeRecord{}, snapshots: map[volume.SnapshotID]snapshotRecord{}, groups: map[volume.GroupID]groupRecord{},
	}}
	for _, dir := range []string{volumesDir, snapshotsDir, incomingDir} {
		names, err := p.names(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		slices.Sort(names)
		slices.Reverse(names) // of two with one name, the later one has it
		for _, name := range names {
			reason, err := s.addFile(dir, name)
			if err != nil {
				return nil, err
			}
			if reason != "" {
				s.ignored = append(s.ignored, IgnoredFile{Path: dir + "/" + name, Reason: reason})
			}
		}
	}
	s.addGroups()
	return s, nil
}

// addFile returns why a file gets no record.
func (s *scan) addFile(dir, name string) (reason string, err error) {
	prefix := map[string]string{volumesDir: "vol-", snapshotsDir: "snap-"}[dir]
	switch {
	case dir == incomingDir:
		return "a creation or copy that was not complete; the driver removes the file at its start", nil
	case !strings.HasPrefix(name, prefix), !volume.CanBeInPool(name, s.uuid):
		return "the name is not that of a volume or snapshot of this pool", nil
	}
	f, err := s.openFile(dir+"/"+name, os.O_RDONLY, 0)
	if unusable(err) {
		return err.Error(), nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if dir == volumesDir {
		return "", s.addVolume(f, volume.ID(name), info.Size())
	}
	return "", s.addSnapshot(f, volume.SnapshotID(name), info.Size())
}

func (s *scan) addVolume(f *os.File, id volume.ID, size int64) error {
	r, unknown, err := readVolume(f, id)
	if err != nil {
		return err
	}
	a, err := poolfile.Read(f)
	if err != nil || a.Size == 0 {
		a.Size = size
		unknown = append(unknown, "size, taken from the file")
	}
	if r.Size = a.Size; len(a.Readers) > 0 {
		if err := s.clearReaders(string(id)); err != nil {
			return err
		}
		unknown = append(unknown, "its copies into "+strings.Join(a.Readers, ", ")+", which have ended")
	}
	r.Name, unknown = s.uniqueName("volume", r.Name, string(id), unknown)
	s.volumes[id] = r
	s.add("volume", string(id), r.Name, unknown)
	return nil
}

// readVolume reads everything but the size. Volumes of older releases have no
// attribute with a record.
func readVolume(f *os.File, id volume.ID) (r volumeRecord, unknown []string, err error) {
	recorded, err := poolfile.ReadRecord(f, &r)
	if err == nil && !recorded {
		r = volumeRecord{Created: volume.IDTime(string(id))}
		r.Content, r.FSType, err = contentOf(f)
		unknown = append(unknown, "name", "source", "whether it is inline", "content, taken as "+describeContent(r.FSType))
	}
	if err != nil {
		return r, nil, err
	}
	requested, ok, err := poolfile.ReadParameters(f)
	if err != nil {
		return r, nil, err
	}
	if !ok {
		unknown = append(unknown, "requested parameters")
	}
	set, ok, err := poolfile.ReadSettings(f)
	if !ok {
		set.Provisioning = thin
		unknown = append(unknown, "settings, taken as "+thin)
	}
	r.State, r.Requested, r.Settings = ready, requested, settings(set)
	return r, unknown, err
}

// clearReaders: without its record a copy does not continue.
func (s *scan) clearReaders(id string) error {
	f, err := s.openFile(volumesDir+"/"+id, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(poolfile.WriteReaders(f, nil), f.Sync(), f.Close())
}

func (s *scan) addSnapshot(f *os.File, id volume.SnapshotID, size int64) error {
	var r snapshotRecord
	var unknown []string
	recorded, err := poolfile.ReadRecord(f, &r)
	if err == nil && !recorded {
		r = snapshotRecord{Size: size, Created: volume.IDTime(string(id))}
		r.Content, r.FSType, err = contentOf(f)
		unknown = append(unknown, "name", "source", "group", "content, taken as "+describeContent(r.FSType))
	}
	if err != nil {
		return err
	}
	r.State = ready
	if r.Group == "" {
		r.Name, unknown = s.uniqueName("snapshot", r.Name, string(id), unknown)
	}
	s.snapshots[id] = r
	s.add("snapshot", string(id), r.Name, unknown)
	return nil
}

// addGroups makes each group of its members.
func (s *scan) addGroups() {
	members := map[volume.GroupID][]volume.SnapshotID{}
	for id, r := range s.snapshots {
		if r.Group != "" {
			members[r.Group] = append(members[r.Group], id)
		}
	}
	for group, ids := range members {
		source := func(id volume.SnapshotID) string { return string(s.snapshots[id].Source) }
		slices.SortFunc(ids, func(a, b volume.SnapshotID) int { return strings.Compare(source(a), source(b)) })
		first := s.snapshots[ids[0]]
		g := groupRecord{State: ready, Created: first.Created, Snapshots: ids}
		for _, id := range ids {
			g.Sources = append(g.Sources, volume.ID(source(id)))
		}
		var unknown []string
		if len(ids) != first.Members {
			unknown = append(unknown, "members whose files are missing")
		}
		g.Name, unknown = s.uniqueName("group", strings.TrimSuffix(first.Name, "/"+source(ids[0])), string(group), unknown)
		s.groups[group] = g
		s.add("group", string(group), g.Name, unknown)
	}
}

func (s *scan) add(kind, id, name string, unknown []string) {
	s.objects = append(s.objects, RebuiltObject{Kind: kind, ID: id, Name: name, Unknown: unknown})
}

// uniqueName returns the id for an unknown name and for one that another object
// has.
func (s *scan) uniqueName(kind, name, id string, unknown []string) (string, []string) {
	if other := s.names[kind+"/"+name]; name != "" && other != "" {
		unknown = append(unknown, "name: "+other+" has "+name+" too")
		name = ""
	}
	if name == "" {
		name = id
	}
	s.names[kind+"/"+name] = id
	return name, unknown
}

// contentOf says filesystem of any file: such a volume can also be used raw, and
// a node that finds no file system in it refuses to mount it.
func contentOf(f *os.File) (volume.Content, string, error) {
	info, err := mkfs.Probe(f)
	if errors.Is(err, mkfs.ErrDamaged) {
		return volume.Filesystem, "", nil
	}
	return volume.Filesystem, string(info.Type), err
}

func describeContent(fsType string) string {
	if fsType == "" {
		return "an unknown file system"
	}
	return "file system " + fsType
}
