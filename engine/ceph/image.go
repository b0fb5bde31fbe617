//go:build ceph

package ceph

import (
	"encoding/binary"
	"errors"
	"strings"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const notFound = syscall.ENOENT

// image is what the cluster says of an image at one moment.
type image struct {
	pool      *pool
	name, id  string
	handle    volume.ID // id of the volume, if ceph-csi created it
	size      int64
	created   time.Time
	record    *volumeRecord // nil: not, or not yet, a volume
	isMaking  bool          // there is no record, and the creation of this name has not ended
	hasLock   bool          // one client at a time writes (feature exclusive-lock)
	isCopy    bool          // the image is mirrored, and its primary is in another cluster
	parent    *rbd.ParentInfo
	snapshots []snapshot     // those of CreateSnapshot and CreateGroup
	others    []rbd.SnapInfo // other snapshots
}

type snapshot struct {
	hash, name string // name is empty for a snapshot without metadata
	id         uint64
	size       int64
	created    time.Time
	group      *groupID // of a member, whose hash is that of the group
}

func (i *image) volumeID() volumeID {
	return volumeID{pool: i.pool.id, hash: hash(i.record.Name), image: i.identity()}
}

// identity returns the internal id that the image had at its creation.
func (i *image) identity() string {
	if i.record != nil {
		return i.record.Image
	}
	return i.id
}

func (i *image) volume() volume.Volume {
	r := i.record
	id, imageID := volume.ID(i.volumeID().String()), i.id
	if i.handle != "" {
		id, imageID = i.handle, "" // as in the volume context of ceph-csi
	}
	return volume.Volume{
		ID: id, Name: r.Name, Size: i.size, Content: r.Content, FSType: r.FSType,
		Source: r.source(), Ephemeral: r.Ephemeral, Created: i.created,
		Locator: access.RBD{
			Ceph: access.Ceph{ClusterID: i.pool.cluster}, Pool: i.pool.name, Namespace: i.pool.namespace, Image: i.name, ImageID: imageID,
		},
	}
}

func (i *image) snapshot(s snapshot) volume.Snapshot {
	id := snapshotID{pool: i.pool.id, image: i.identity(), hash: s.hash, snap: s.id}
	out := volume.Snapshot{
		ID: volume.SnapshotID(id.String()), Name: s.name, Source: volume.ID(i.volumeID().String()), Size: s.size,
		Content: i.record.Content, FSType: i.record.FSType, Created: s.created, Ready: true,
	}
	if s.group != nil {
		out.Group = volume.GroupID(s.group.String())
	}
	return out
}

// snapshotWith returns the snapshot with a hash of a name.
func (i *image) snapshotWith(hash string) (snapshot, bool) {
	for _, s := range i.snapshots {
		if s.hash == hash {
			return s, true
		}
	}
	return snapshot{}, false
}

// inspect reads an image by name. An image that is open for reading has no
// watcher.
func (p *pool) inspect(name string) (*image, error) {
	return p.read(name, func() (*rbd.Image, error) { return rbd.OpenImageReadOnly(p.io, name, rbd.NoSnapshot) })
}

// inspectID reads an image by its internal id. Its name is unknown.
func (p *pool) inspectID(id string) (*image, error) {
	return p.read(id, func() (*rbd.Image, error) { return rbd.OpenImageByIdReadOnly(p.io, id, rbd.NoSnapshot) })
}

func (p *pool) read(name string, open func() (*rbd.Image, error)) (i *image, err error) {
	r, err := open()
	if err != nil {
		return nil, explain(err, "open image %s/%s", p.name, name)
	}
	defer closeImage(r, &err)
	i = &image{pool: p, name: name}
	if err := i.load(r); err != nil {
		return nil, explain(err, "read image %s/%s", p.name, name)
	}
	return i, nil
}

func closeImage(i *rbd.Image, err *error) {
	if closing := i.Close(); *err == nil {
		*err = explain(closing, "close an image")
	}
}

func (i *image) load(r *rbd.Image) error {
	id, err := r.GetId()
	if err != nil {
		return err
	}
	features, err := r.GetFeatures()
	if err != nil {
		return err
	}
	created, err := r.GetCreateTimestamp()
	if err != nil {
		return err
	}
	if i.parent, err = r.GetParent(); err != nil && !is(err, notFound) {
		return err
	}
	metadata, err := r.ListMetadata()
	if err != nil {
		return err
	}
	// After the record: the end of a creation sets the size, and then the record. An open
	// image keeps the size that it had when it was opened.
	if i.size, err = i.pool.sizeOf(id); err != nil {
		return err
	}
	i.hasLock, i.isCopy = features&rbd.FeatureExclusiveLock != 0, features&featureNonPrimary != 0
	i.id, i.created = id, time.Unix(created.Sec, created.Nsec).UTC()
	if err := i.loadRecord(metadata[keyVolume]); err != nil {
		return err
	}
	return i.loadSnapshots(r, metadata)
}

// sizeOf returns the size that an image has now.
func (p *pool) sizeOf(id string) (int64, error) {
	header, err := p.io.GetOmapValues(headerObject+id, "", sizeKey, 1)
	if err != nil {
		return 0, err
	}
	size := header[sizeKey]
	if len(size) != 8 {
		return 0, errs.Errorf(errs.Internal, "the header of the image with id %s has %d bytes instead of a size of 8", id, len(size))
	}
	return int64(binary.LittleEndian.Uint64(size)), nil
}

func (i *image) loadRecord(text string) error {
	r, err := decodeVolume(text, i.id)
	if err != nil || r != nil && r.Image == i.id {
		i.record = r
		return err
	}
	if hash, ok := strings.CutPrefix(i.name, volumePrefix); ok {
		creation, err := i.pool.creation(hash)
		if err != nil {
			return err
		}
		// A record from elsewhere is that of a clone's source, or came with the image
		// from another cluster.
		i.isMaking = creation != "" && (r == nil || r.UUID != creation && i.parent != nil)
	}
	if r.isOf(i.name, i.id, i.isMaking) {
		i.record = r
	}
	return nil
}

func (i *image) loadSnapshots(r *rbd.Image, metadata map[string]string) error {
	infos, err := r.GetSnapshotNames()
	if err != nil {
		return err
	}
	for _, info := range infos {
		s := snapshot{id: info.Id, size: int64(info.Size)}
		if hash, own := strings.CutPrefix(info.Name, snapPrefix); own {
			s.hash, s.name = hash, decodeSnap(metadata[keySnapPrefix+hash], i.identity(), hash)
		} else {
			kind, err := r.GetSnapNamespaceType(info.Id)
			if err == nil && kind == rbd.SnapNamespaceTypeGroup {
				s.group, err = groupOf(r, info)
			}
			switch {
			case is(err, notFound): // removed meanwhile
				continue
			case err != nil:
				return err
			case s.group == nil && kind != snapshotOfMirror:
				i.others = append(i.others, info)
				continue
			case s.group == nil:
				continue
			}
			s.hash, s.name = s.group.memberHash(), s.group.String()
		}
		created, err := r.GetSnapTimestamp(info.Id)
		if err != nil {
			return err
		}
		s.created = time.Unix(created.Sec, created.Nsec).UTC()
		i.snapshots = append(i.snapshots, s)
	}
	return nil
}

// open opens an image for changes, which needs the exclusive lock only for
// some. A client that uses the image stays connected.
func (p *pool) open(name string, change func(*rbd.Image) error) (err error) {
	r, err := rbd.OpenImage(p.io, name, rbd.NoSnapshot)
	if err != nil {
		return explain(err, "open image %s/%s", p.name, name)
	}
	defer closeImage(r, &err)
	return explain(change(r), "change image %s/%s", p.name, name)
}

func (p *pool) openID(id string, change func(*rbd.Image) error) (err error) {
	r, err := rbd.OpenImageById(p.io, id, rbd.NoSnapshot)
	if err != nil {
		return explain(err, "open the image with id %s of pool %s", id, p.name)
	}
	defer closeImage(r, &err)
	return explain(change(r), "change the image with id %s of pool %s", id, p.name)
}

// remove removes an image, which can be incomplete or missing, by way of the
// trash. id is its internal id, or "" if it is unknown. The removal by name of
// librbd has the same steps, and cannot be continued between them.
func (p *pool) remove(name, id string) error {
	err := rbd.GetImage(p.io, name).Trash(0)
	if ignoreMissing(err) != nil {
		return explain(err, "move image %s/%s to the trash", p.name, name)
	}
	trash, err := rbd.GetTrashList(p.io)
	if err != nil {
		return explain(err, "list the trash of pool %s", p.name)
	}
	for _, t := range trash {
		if t.Name == name && (id == "" || t.Id == id) {
			err := rbd.TrashRemove(p.io, t.Id, true)
			if is(err, syscall.EROFS) {
				return errs.Errorf(errs.Precondition, "image %s/%s is the source of a migration; commit or abort it with rbd migration", p.name, name)
			}
			if ignoreMissing(err) != nil {
				return explain(err, "remove image %s/%s", p.name, name)
			}
		}
	}
	return nil
}

// What go-ceph has no name for.
const (
	featureNonPrimary = 1 << 10                  // of mirroring with snapshots
	snapshotOfMirror  = rbd.SnapNamespaceType(3) // removed with the image
)

// Objects of librbd.
const (
	idObject     = "rbd_id."     // has the id of the image with the name that follows
	headerObject = "rbd_header." // of the image with the id that follows
	sizeKey      = "size"        // in the omap of the header
)

// ignoreMissing returns nil for an object that does not exist.
func ignoreMissing(err error) error {
	if errors.Is(plain(err), notFound) {
		return nil
	}
	return err
}
