package client_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/test/testkit"
)

// A client.db of release 0.1.0. DIR stands for a directory of the test.
const oldRecords = `
cleat | store | {"v":1,"r":{"role":"client","version":1}}
snapshots | other.example.com/s | {"v":1,"r":{"driver":"other.example.com","name":"s","id":"snap of s","phase":"ready","source":"id/1","parameters":{"p":"q"},"size":1048576,"ready":true,"created":"2026-11-23T14:49:23.970156801Z","capability":{"fsType":"xfs","mountFlags":["noatime"]}}}
groups | other.example.com/both | {"v":1,"r":{"driver":"other.example.com","name":"both","id":"group-1","phase":"ready","sources":["id/1"],"ready":true,"created":"2026-11-23T14:49:23.995072323Z","members":[{"driver":"other.example.com","name":"snap-1","id":"snap-1","phase":"ready","source":"id/1","size":16777216,"ready":true,"group":"group-1","created":"2026-11-23T14:49:23.995073166Z","capability":{"block":true}}]}}
volumes | other.example.com/id/3 | {"v":1,"r":{"driver":"other.example.com","name":"id/3","id":"id/3","phase":"foreign","size":{"Required":0,"Limit":0},"capacity":1048576,"capability":{},"context":{"context":"id/3"},"created":"0001-01-01T00:00:00Z","attachment":{"node":"node-7","capability":{},"controller":true,"publishContext":{"device":"of id/3"},"staging":"DIR/state/staging/e756b5f0a4089306d06b8d4a","targets":[{"path":"DIR/theirs","published":true}]}}}
volumes | other.example.com/r | {"v":1,"r":{"driver":"other.example.com","name":"r","id":"id/2","phase":"ready","size":{"Required":0,"Limit":0},"capacity":2097152,"capability":{"fsType":"xfs","mountFlags":["noatime"]},"source":{"snapshot":"snap of s"},"sourceRef":"s","context":{"context":"id/2"},"created":"2026-11-23T14:49:23.97Z","grow":2097152}}
volumes | other.example.com/half | {"v":1,"r":{"driver":"other.example.com","name":"half","phase":"creating","size":{"Required":1048576,"Limit":0},"capability":{"block":true},"created":"2026-11-23T14:49:23.97Z"}}
volumes | other.example.com/v | {"v":1,"r":{"driver":"other.example.com","name":"v","id":"id/1","phase":"ready","size":{"Required":1048576,"Limit":4194304},"capacity":1048576,"capability":{"fsType":"xfs","mountFlags":["noatime"]},"parameters":{"a":"b"},"mutable":{"c":"d"},"context":{"context":"id/1"},"topology":[{"zone":"z"}],"created":"2026-11-23T14:49:23.964Z","attachment":{"node":"node-7","capability":{"fsType":"xfs","mountFlags":["noatime"]},"controller":true,"publishContext":{"device":"of id/1"},"staging":"DIR/state/staging/4f29287ced8c1e9cae3a4b84","targets":[{"path":"DIR/was","published":true,"was":{"mode":448,"uid":0,"gid":0}},{"path":"DIR/new","readOnly":true,"published":true}]}}}
`

func writeOldDatabase(t *testing.T, dir string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "state", "client.db")
	db, err := bbolt.Open(path, 0o600, nil)
	testkit.Must(t, err)
	err = db.Update(func(tx *bbolt.Tx) error {
		for line := range strings.Lines(strings.TrimPrefix(strings.ReplaceAll(oldRecords, "DIR", dir), "\n")) {
			f := strings.SplitN(strings.TrimSpace(line), " | ", 3)
			b, err := tx.CreateBucketIfNotExists([]byte(f[0]))
			if err := errors.Join(err, b.Put([]byte(f[1]), []byte(f[2]))); err != nil {
				return err
			}
		}
		return nil
	})
	testkit.Must(t, errors.Join(err, db.Close()))
	return path
}

// oldState is the driver that wrote oldRecords, with attached volumes.
func oldState(t *testing.T) (o *other, dir string) {
	t.Helper()
	o = everyStep(snapshotting())
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	dir = t.TempDir()
	for _, made := range []string{"state/staging/4f29287ced8c1e9cae3a4b84", "state/staging/e756b5f0a4089306d06b8d4a", "was", "new", "theirs"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(dir, made), 0o700))
	}
	for id, v := range map[string]*otherVolume{
		"id/1": {name: "v", published: true, staged: dir + "/state/staging/4f29287ced8c1e9cae3a4b84", targets: map[string]bool{dir + "/was": true, dir + "/new": true}},
		"id/2": {name: "r", targets: map[string]bool{}},
		"id/3": {name: "theirs", published: true, staged: dir + "/state/staging/e756b5f0a4089306d06b8d4a", targets: map[string]bool{dir + "/theirs": true}},
	} {
		v.Volume = &csi.Volume{VolumeId: id, CapacityBytes: mib, VolumeContext: map[string]string{"context": id}}
		o.volumes[id], o.next = v, 3
	}
	return o, dir
}

// Objects of release 0.1.0 stay known and attached, and can be detached and
// deleted.
func TestImportOfAnOlderRelease(t *testing.T) {
	o, dir := oldState(t)
	path := writeOldDatabase(t, dir)
	o.serve(t, dir+"/csi.sock")
	config := client.Config{Endpoint: "unix://" + dir + "/csi.sock", StateDir: dir + "/state"}
	d, ctx := dial(t, config), t.Context()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the database is still there: %v", err)
	}
	if _, err := os.Lstat(path + ".migrated"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"half=creating", "id/3=foreign", "r=ready", "v=ready"}, names(t, d)); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	v, err := d.Show(ctx, "v")
	want := client.Volume{
		Object: client.Object{ID: "id/1", Name: "v", Driver: "other.example.com", State: "ready"}, Size: mib,
		Capability: client.Capability{FSType: "xfs", MountFlags: []string{"noatime"}}, Parameters: map[string]string{"a": "b"}, Mutable: map[string]string{"c": "d"},
		Context: map[string]string{"context": "id/1"}, Topology: []map[string]string{{"zone": "z"}}, Created: v.Created,
		Targets: []client.Target{{Path: dir + "/was", Published: true}, {Path: dir + "/new", ReadOnly: true, Published: true}},
		Staging: dir + "/state/staging/4f29287ced8c1e9cae3a4b84",
	}
	if diff := cmp.Diff(want, v); diff != "" || err != nil || v.Created.Format("2006-01-02 15:04:05.000") != "2026-11-23 14:49:23.964" {
		t.Errorf("Show: %v, created %v (-want +got):\n%s", err, v.Created, diff)
	}
	snapshots, err := d.Snapshots(ctx, "v")
	if err != nil || len(snapshots) != 2 || snapshots[1].Group != "group-1" || snapshots[0].ID != "snap of s" || snapshots[0].Size != mib || snapshots[0].SourceName != "v" {
		t.Errorf("Snapshots: %+v, %v", snapshots, err)
	}
	groups, err := d.Groups(ctx)
	if err != nil || len(groups) != 1 || len(groups[0].Snapshots) != 1 || groups[0].Snapshots[0].Size != 16*mib || groups[0].Snapshots[0].Source != "id/1" {
		t.Errorf("Groups: %+v, %v", groups, err)
	}
	if _, err := d.Attach(ctx, client.AttachRequest{Volume: "v", Target: dir + "/new", ReadOnly: true}); err != nil {
		t.Errorf("attach again: %v", err)
	}
	if _, err := d.Attach(ctx, client.AttachRequest{Volume: "r", Target: dir + "/r"}); err != nil || o.volumes["id/2"].grown != 2*mib {
		t.Errorf("attach of a volume that has to grow: %v, the node got %d", err, o.volumes["id/2"].grown)
	}
	for _, ref := range []string{"v", "r", "id/3", "half"} {
		if err := errors.Join(d.Detach(ctx, ref, ""), d.Delete(ctx, ref)); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if err := errors.Join(d.DeleteSnapshot(ctx, "s"), os.Remove(dir+"/was")); err != nil {
		t.Error(err) // the previous directory exists again
	}
	o.checkEmpty(t, config.StateDir, dir+"/new")
	if left := names(t, d); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestImportOfADamagedDatabase(t *testing.T) {
	o := newOther()
	_, config := start(t, o)
	path := filepath.Join(config.StateDir, "client.db")
	testkit.Must(t, errors.Join(os.MkdirAll(config.StateDir, 0o700), os.WriteFile(path, []byte("nonsense"), 0o600)))
	if _, err := client.Dial(t.Context(), config); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v, want an error with %s", err, path)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the damaged database was moved: %v", err)
	}
}

// The error names the file; temporary files of a crash are ignored.
func TestStateOfANewerRelease(t *testing.T) {
	d, config := start(t, newOther())
	testkit.Value(d.Create(t.Context(), sized("v")))(t)
	files, err := filepath.Glob(filepath.Join(config.StateDir, "volumes", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	testkit.Must(t, os.WriteFile(files[0]+".new", []byte("{"), 0o600))
	if diff := cmp.Diff([]string{"v=ready"}, names(t, d)); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	for content, says := range map[string]string{`{"version":2}`: "newer", `{"version":1}`: "damaged", "{": "damaged", "": "damaged"} {
		testkit.Must(t, os.WriteFile(files[0], []byte(content), 0o600))
		if _, err := d.List(t.Context()); err == nil || !strings.Contains(err.Error(), files[0]) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want an error with %q and the path", content, err, says)
		}
	}
}
