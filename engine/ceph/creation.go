//go:build ceph

package ceph

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rbd"
	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
)

// creationsObject has the creations that have begun: keys of its omap are hashes
// of names, values the UUIDs that the records of the images get. An image with
// the name of a volume and neither a record nor a creation is not this program's.
const creationsObject = "cleat-creations"

// creation returns the UUID of the creation with a hash of a name that has not
// ended; "": no creation has begun.
func (p *pool) creation(hash string) (string, error) {
	all, err := p.io.GetOmapValues(creationsObject, "", hash, 1)
	return string(all[hash]), explain(ignoreMissing(err), "read object %s in pool %s", creationsObject, p.name)
}

func (p *pool) beginCreation(hash, uuid string) error {
	return explain(p.io.SetOmap(creationsObject, map[string][]byte{hash: []byte(uuid)}), "write object %s in pool %s", creationsObject, p.name)
}

func (p *pool) endCreation(hash string) error {
	return explain(ignoreMissing(p.io.RmOmapKeys(creationsObject, []string{hash})), "write object %s in pool %s", creationsObject, p.name)
}

// creationAge is how long the requests of a killed process can still arrive at
// the cluster, with a wide margin.
const creationAge = 10 * time.Minute

// isRecent reports whether a creation began within creationAge.
func isRecent(id string) bool {
	u, err := uuid.Parse(id)
	if err != nil {
		return false
	}
	begun := time.Unix(u.Time().UnixTime())
	return time.Since(begun).Abs() < creationAge
}

// endCreations removes creations of which hasEnded reports, for the name of an
// image or subvolume, that they completed or left nothing. A recent one can have
// left requests that have not arrived yet.
func (p *pool) endCreations(hasEnded func(name string) (bool, error)) error {
	all, err := p.io.GetAllOmapValues(creationsObject, "", "", pageSize)
	if ignoreMissing(err) != nil {
		return explain(err, "read object %s in pool %s", creationsObject, p.name)
	}
	for hash, id := range all {
		if isRecent(string(id)) {
			continue
		}
		ended, err := hasEnded(imageName(hash))
		if err == nil && ended {
			err = p.endCreation(hash)
		}
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
	}
	return nil
}

// hasEnded reports whether the creation of an image completed, or left nothing.
func (p *pool) hasEnded(name string) (bool, error) {
	i, err := p.inspect(name)
	if !is(err, notFound) {
		return err == nil && i.record != nil, err
	}
	_, err = p.io.Stat(idObject + name) // of a part of an image
	return is(err, notFound), explain(ignoreMissing(err), "look up image %s/%s", p.name, name)
}

// noRecord is the error of an image that has the name of a volume, but was not
// made by this program, or has lost its record.
func (i *image) noRecord() error {
	return errs.Errorf(errs.Precondition, "image %s has the name of a volume and no record of this driver, as a restored backup has, so that it is neither used nor removed; rename or remove it, or write the volume's record (docs/ceph.md, Restore an image)", i.spec())
}

// quoteWord quotes a word for a shell.
func quoteWord(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// missing returns nil if nothing of a volume exists that has no image with its
// name and record: no image with its internal id, also in the trash or under
// another name, unless the volume was deleted and has snapshots, and no image
// with its record in another pool.
func (e *Engine) missing(p *pool, v volumeID) error {
	if err := e.notElsewhere(p, v); err != nil {
		return err
	}
	if exists, err := p.hasID(v.image); err != nil || !exists {
		return cmp.Or(err, p.notInNamespace("volume "+v.String(), hasImage(v.image)))
	}
	deleted, err := p.inspect(deletedName(v.image))
	if is(err, notFound) {
		if removing, err := p.isInTrash(deletedName(v.image)); err != nil || removing {
			return err // the removal of a deleted volume was interrupted
		}
		return errs.Errorf(errs.Precondition, "the image of volume %s, with the id %s, is not named %s any more, but in the trash of pool %s, in a migration, or renamed; restore it or end the migration with rbd, or remove it", v, v.image, imageName(v.hash), p.name)
	}
	if err == nil && deleted.id != v.image {
		err = fmt.Errorf("image %s has the id %s", deleted.name, deleted.id)
	}
	return err
}

// notElsewhere returns nil if no other pool than p has an image with the name and
// record of a volume. p is nil for a number of a pool that the cluster does not
// have, as in another cluster to which the image was mirrored.
func (e *Engine) notElsewhere(p *pool, v volumeID) error {
	for _, other := range e.pools {
		if other == p {
			continue
		}
		i, err := other.inspect(imageName(v.hash))
		if ignoreMissing(err) != nil {
			return err
		}
		if err == nil && i.record != nil && i.record.Image == v.image {
			return errs.Errorf(errs.Precondition, "the image of volume %s is %s now, as volume %s: move it back to its pool with rbd, or, if it was mirrored to this cluster, make a PersistentVolume with this id as volumeHandle", v, i.spec(), i.volumeID())
		}
	}
	return nil
}

func hasImage(id string) func(*pool) (bool, error) {
	return func(p *pool) (bool, error) { return p.hasID(id) }
}

// notInNamespace returns nil if no other namespace of the pool has what is missing in
// this one: ids name the pool only, and the configuration can have had another
// namespace. What a Ceph user that is limited to some cannot read does not count.
func (p *pool) notInNamespace(what string, has func(*pool) (bool, error)) error {
	names, err := rbd.NamespaceList(p.io)
	if is(err, syscall.EPERM, syscall.EACCES) {
		return nil
	}
	if err != nil {
		return explain(err, "list the namespaces of pool %s", p.name)
	}
	others := slices.DeleteFunc(append(names, ""), func(name string) bool { return name == p.namespace })
	for _, name := range others {
		other := &pool{cluster: p.cluster, name: p.name, id: p.id, namespace: name}
		if other.io, err = p.rados.OpenIOContext(p.name); err != nil {
			return explain(err, "open pool %s", p.name)
		}
		other.io.SetNamespace(name)
		exists, err := has(other)
		other.io.Destroy()
		switch {
		case is(err, syscall.EPERM, syscall.EACCES):
		case err != nil:
			return err
		case exists:
			return errs.Errorf(errs.Precondition, "%s is in namespace %q of pool %s, and radosNamespace of the configuration is %q; set it to that namespace, or use a driver that has it", what, name, p.name, p.namespace)
		}
	}
	return nil
}

// notPrimary is the error of an image that only mirroring changes.
func (i *image) notPrimary() error {
	return errs.Errorf(errs.Precondition, "image %s is the copy of a mirrored image: rbd mirror image promote makes it the primary one, if that in the other cluster is demoted or lost", i.spec())
}

// isInTrash reports whether librbd's trash has an image of this name.
func (p *pool) isInTrash(name string) (bool, error) {
	trash, err := rbd.GetTrashList(p.io)
	if err != nil {
		return false, explain(err, "list the trash of pool %s", p.name)
	}
	return slices.ContainsFunc(trash, func(t rbd.TrashInfo) bool { return t.Name == name }), nil
}

// leadsNowhere reports whether the object that has the id of the image with a
// name has an id of which nothing exists: an interrupted rename leaves it after
// its image is gone.
func (p *pool) leadsNowhere(name string) (bool, error) {
	text := make([]byte, 256)
	n, err := p.io.Read(idObject+name, text, 0)
	if err != nil {
		return false, explain(err, "look up image %s/%s", p.name, name)
	}
	const length = 4 // of the id, in front of it
	if n <= length {
		return false, nil
	}
	exists, err := p.hasID(string(text[length:n]))
	return err == nil && !exists, err
}

// hasID reports whether an image with an internal id exists, also in the trash.
func (p *pool) hasID(id string) (bool, error) {
	_, err := p.io.Stat(headerObject + id)
	return err == nil, explain(ignoreMissing(err), "look up the image with id %s in pool %s", id, p.name)
}
