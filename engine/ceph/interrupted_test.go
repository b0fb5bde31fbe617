//go:build ceph

package ceph

import (
	"slices"
	"testing"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// TestInterruptedCalls: librbd does not continue what a kill interrupts between
// its own steps. Each case makes what is left then.
func TestInterruptedCalls(t *testing.T) {
	for _, c := range []struct {
		name  string
		leave func(t *testing.T, io *rados.IOContext, id volumeID)
		// repeats: the deletion was not answered, so it is repeated.
		repeats bool
	}{
		{"rename before the directory", func(t *testing.T, io *rados.IOContext, id volumeID) {
			copyID(t, io, imageName(id.hash), deletedName(id.image))
		}, true},
		{"rename after the directory", renamed, true},
		{"rename after the directory, not repeated", renamed, false},
		{"rename after the directory, image removed", renamedAndRemoved, true},
		{"rename after the directory, image removed, not repeated", renamedAndRemoved, false},
		{"move to the trash, repeated", func(t *testing.T, io *rados.IOContext, id volumeID) {
			testkit.Must(t, rbd.GetImage(io, imageName(id.hash)).Rename(deletedName(id.image)), rbd.GetImage(io, deletedName(id.image)).Trash(0))
		}, true},
		{"move to the trash", func(t *testing.T, io *rados.IOContext, id volumeID) {
			testkit.Must(t, rbd.GetImage(io, imageName(id.hash)).Rename(deletedName(id.image)), io.Delete(idObject+deletedName(id.image)))
		}, false},
		{"move to the trash before the end", func(t *testing.T, io *rados.IOContext, id volumeID) {
			image := rbd.GetImage(io, imageName(id.hash))
			testkit.Must(t, image.Rename(deletedName(id.image)), rbd.GetImage(io, deletedName(id.image)).Trash(0))
			entry := testkit.Value(io.GetOmapValues(trashObject, "", "id_"+id.image, 1))(t)
			content := entry["id_"+id.image]
			content[len(content)-1] = 1 // state MOVING, the last field of cls_rbd's TrashImageSpec
			testkit.Must(t, io.SetOmap(trashObject, entry))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := testConfig(t)
			e := open(t, config)
			v := create(t, e, "base", volume.Source{})
			closeEngine(t, e)
			io := ioctx(t, config.Cluster.RBD.RadosNamespace)
			id, _ := parseVolumeID(v.ID)
			c.leave(t, io, id)

			e = open(t, config)
			if c.repeats {
				testkit.Must(t, e.Delete(testkit.Context(t), v.ID))
			}
			if again := create(t, e, "base", volume.Source{}); again.ID == v.ID {
				t.Error("a new volume has the image of the deleted one")
			}
			testkit.Eventually(t, "the new image alone", func() bool {
				return slices.Equal(testkit.Value(rbd.GetImageNames(io))(t), []string{imageName(id.hash)})
			})
			deleteAll(t, e)
			wantNoImages(t, config.Cluster.RBD.RadosNamespace)
		})
	}
}

// A creation that ended after each of librbd's first steps is repeated.
func TestInterruptedCreation(t *testing.T) {
	t.Parallel()
	config := testConfig(t)
	e := open(t, config)
	io := ioctx(t, config.Cluster.RBD.RadosNamespace)
	for name, listed := range map[string]bool{"without header": true, "without entry in the directory": false} {
		v := create(t, e, name, volume.Source{})
		id, _ := parseVolumeID(v.ID)
		testkit.Must(t, io.Delete(headerObject+id.image), e.pools[0].beginCreation(id.hash, "00000000-0000-4000-8000-000000000000"))
		if !listed {
			testkit.Must(t, io.RmOmapKeys("rbd_directory", []string{"id_" + id.image, "name_" + imageName(id.hash)}))
		}
		if again := create(t, e, name, volume.Source{}); again.ID == v.ID {
			t.Errorf("%s: the creation returns the incomplete image", name)
		}
		deleteAll(t, e)
	}
	wantNoImages(t, config.Cluster.RBD.RadosNamespace)
}

// renamed renames an image, and keeps the object that has its id by its old name.
func renamed(t *testing.T, io *rados.IOContext, id volumeID) {
	testkit.Must(t, rbd.GetImage(io, imageName(id.hash)).Rename(deletedName(id.image)))
	copyID(t, io, deletedName(id.image), imageName(id.hash))
}

// renamedAndRemoved also removes it, as the next process does.
func renamedAndRemoved(t *testing.T, io *rados.IOContext, id volumeID) {
	renamed(t, io, id)
	testkit.Must(t, rbd.GetImage(io, deletedName(id.image)).Remove())
}

func copyID(t *testing.T, io *rados.IOContext, from, to string) {
	t.Helper()
	content := make([]byte, 64)
	n := testkit.Value(io.Read(idObject+from, content, 0))(t)
	testkit.Must(t, io.WriteFull(idObject+to, content[:n]))
}
