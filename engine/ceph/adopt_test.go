//go:build ceph

package ceph

import (
	"fmt"
	"testing"

	"github.com/ceph/go-ceph/rbd"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// foreignVolume lays out an image as ceph-csi does, with further records.
func foreignVolume(t *testing.T, e *Engine, uuid string, more map[string][]byte) (handle, string) {
	t.Helper()
	io := ioctx(t, e.pools[0].namespace)
	name := "csi-vol-" + uuid
	options := rbd.NewRbdImageOptions()
	defer options.Destroy()
	testkit.Must(t, rbd.CreateImage(io, name, 16*mib, options))
	i := testkit.Value(rbd.OpenImage(io, name, rbd.NoSnapshot))(t)
	defer i.Close()
	id := testkit.Value(i.GetId())(t)
	journal := map[string][]byte{"csi.volname": []byte("pvc-" + uuid), "csi.imagename": []byte(name), "csi.imageid": []byte(id), "csi.volume.owner": []byte("default")}
	for key, value := range more {
		journal[key] = value
	}
	testkit.Must(t, io.SetOmap("csi.volume."+uuid, journal), io.SetOmap("csi.volumes.default", map[string][]byte{"csi.volume.pvc-" + uuid: []byte(uuid)}))
	return handle{cluster: "test", pool: e.pools[0].id, uuid: uuid}, name
}

func TestAdoptedVolume(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	ctx := testkit.Context(t)
	h, name := foreignVolume(t, e, "b0285c97-a0ce-11eb-8c66-0242ac110002", nil)
	id := volume.ID(h.String())
	v := testkit.Value(e.Get(ctx, id))(t)
	// what ceph-csi writes into a PersistentVolume
	want := testkit.Value(access.Decode(map[string]string{"clusterID": "test", "pool": testPool, "imageName": name, "radosNamespace": e.pools[0].namespace}))(t)
	if v.ID != id || v.Size != 16*mib || v.Content != volume.Filesystem || v.FSType != "" || !access.Equal(v.Locator, want) {
		t.Errorf("Get: %+v; want locator %+v", v, want)
	}
	if grown := testkit.Value(e.Expand(ctx, id, volume.SizeRange{Required: 32 * mib}))(t); grown.Size != 32*mib || grown.ID != id {
		t.Errorf("Expand: %+v", grown)
	}
	if all := testkit.Value(e.VolumeHealth(ctx, id))(t); len(all) > 0 {
		t.Errorf("VolumeHealth: %+v", all)
	}
	journal := testkit.Value(ioctx(t, e.pools[0].namespace).GetOmapValues("csi.volume."+h.uuid, "", "", 100))(t)
	wantKind(t, e.Delete(ctx, id), "Delete", errs.Precondition)
	_, err := e.CreateSnapshot(ctx, volume.SnapshotRequest{Name: "s", Source: id})
	wantKind(t, err, "CreateSnapshot", errs.Precondition)
	_, err = e.Create(ctx, request("clone", volume.Source{Volume: id}))
	wantKind(t, err, "Create of a clone", errs.Precondition)
	if got := images(t, e); !cmp.Equal(got, []string{name}) {
		t.Errorf("images: %q", got)
	}
	after := testkit.Value(ioctx(t, e.pools[0].namespace).GetOmapValues("csi.volume."+h.uuid, "", "", 100))(t)
	if diff := cmp.Diff(journal, after); diff != "" {
		t.Errorf("ceph-csi's record changed: %s", diff)
	}
	if all := testkit.Value(e.List(ctx, "", 0))(t); len(all) > 0 {
		t.Errorf("List: %+v", all)
	}
}

func TestAdoptRefuses(t *testing.T) {
	t.Parallel()
	e := open(t, testConfig(t))
	ctx := testkit.Context(t)
	uuid := func(n int) string { return fmt.Sprintf("b0285c97-a0ce-11eb-8c66-%012d", n) }
	encrypted, _ := foreignVolume(t, e, uuid(1), map[string][]byte{"csi.volume.encryptKMS": []byte("vault")})
	replaced, _ := foreignVolume(t, e, uuid(2), map[string][]byte{"csi.imageid": []byte("1234")})
	for name, c := range map[string]struct {
		h    handle
		want errs.Kind
	}{
		"encrypted":  {encrypted, errs.Precondition},
		"replaced":   {replaced, errs.NotFound},
		"missing":    {handle{cluster: "test", pool: e.pools[0].id, uuid: uuid(3)}, errs.NotFound},
		"elsewhere":  {handle{cluster: "other", pool: e.pools[0].id, uuid: uuid(1)}, errs.Precondition},
		"other pool": {handle{cluster: "test", pool: 1, uuid: uuid(1)}, errs.Precondition},
		"no pool":    {handle{cluster: "test", pool: 999, uuid: uuid(1)}, errs.Precondition},
	} {
		_, err := e.Get(ctx, volume.ID(c.h.String()))
		wantKind(t, err, "Get of a volume that is "+name, c.want)
		if err := e.Delete(ctx, volume.ID(c.h.String())); (err == nil) != (c.want == errs.NotFound) {
			t.Errorf("Delete of a volume that is %s: %v", name, err)
		}
	}
}
