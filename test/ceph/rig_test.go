//go:build ceph

// Package ceph tests cleat csi with engines ceph and cephfs as processes on a
// cluster of the test: what needs no kernel client.
package ceph

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
)

// shared are the cluster, and a cleat with Ceph's libraries and crash points.
var shared struct {
	*cephtest.Cluster
	cleat string
	rigs  atomic.Int64
}

// fsName is the file system of the cluster.
const fsName = "files"

func TestMain(m *testing.M) {
	kernelcall.Main()
	code := testkit.RunMain(m, func(dir string) (err error) {
		shared.cleat = filepath.Join(dir, "cleat")
		if err := testkit.BuildTo(context.Background(), shared.cleat, testkit.Cleat, "-tags", "ceph,pacific,crashpoints"); err != nil {
			return err
		}
		c := filepath.Join(dir, "c")
		if err := os.Mkdir(c, 0o700); err != nil {
			return err
		}
		if shared.Cluster, err = cephtest.Run(c, cephtest.Options{FS: fsName}); err != nil {
			return err
		}
		return shared.ShortenWaits()
	})
	if shared.Cluster != nil {
		shared.Stop()
	}
	os.Exit(code)
}

// rig is one installation with a pool, or a group of subvolumes, of its own.
type rig struct {
	testing.TB
	dir         string
	pool, group string   // one of them is empty
	flags       []string // of every process
}

// newRig is an installation with engine ceph.
func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{TB: t, pool: fmt.Sprintf("pool-%d", shared.rigs.Add(1))}
	testkit.Must(t, shared.CreatePool(r.pool))
	r.configure("--engine", "ceph", "--ceph-pool", r.pool)
	return r
}

// newFSRig is an installation with engine cephfs.
func newFSRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{TB: t, group: fmt.Sprintf("group-%d", shared.rigs.Add(1))}
	r.configure("--engine", "cephfs", "--cephfs-name", fsName)
	r.authorize("mon", `allow r, allow command "osd blocklist"`, "mgr", "allow rw", "osd", "allow *", "mds", "allow *")
	return r
}

// authorize makes the controller use a user with these capabilities, as
// docs/ceph.md names them.
func (r *rig) authorize(caps ...string) {
	r.Helper()
	user := "of-" + r.group
	r.useKey(user, testkit.Value(shared.User(user, caps...))(r))
}

func (r *rig) useKey(user, key string) {
	r.Helper()
	testkit.Must(r,
		os.WriteFile(filepath.Join(r.secret(), "userID"), []byte(user), 0o600),
		os.WriteFile(filepath.Join(r.secret(), "userKey"), []byte(key), 0o600),
	)
}

func (r *rig) secret() string { return filepath.Join(r.dir, "secret") }

// engines has a new installation by the name of its engine.
func engines() map[string]func(testing.TB) *rig {
	return map[string]func(testing.TB) *rig{"ceph": newRig, "cephfs": newFSRig}
}

func (r *rig) configure(engine ...string) {
	r.Helper()
	r.dir = testkit.Dir(r)
	config := testkit.Value(json.Marshal([]map[string]any{{
		"clusterID": "test", "monitors": shared.Monitors(), "cephFS": map[string]string{"subvolumeGroup": r.group},
	}}))(r)
	testkit.Must(r, os.Mkdir(r.secret(), 0o700), os.WriteFile(filepath.Join(r.dir, "config.json"), config, 0o600))
	r.useKey("admin", shared.AdminKey())
	r.flags = append(engine, "--ceph-cluster", "test", "--ceph-config", filepath.Join(r.dir, "config.json"), "--ceph-secret", r.secret())
}

// controllerFlags are those of a controller on a machine.
func (r *rig) controllerFlags(machine string) []string {
	return append([]string{
		"--services", "controller", "--node-id", machine, "--addons-endpoint", "unix://" + r.addons(machine),
	}, r.flags...)
}

func (r *rig) addons(machine string) string { return filepath.Join(r.dir, "addons-"+machine, "a.sock") }

// controller starts a controller on a machine, with an empty state directory.
func (r *rig) controller(machine string) *driver.Process {
	r.Helper()
	return driver.Start(r, shared.cleat, r.dir, machine, r.controllerFlags(machine)...)
}

func create(name string, size int64, sources ...*spec.VolumeContentSource) *spec.CreateVolumeRequest {
	c := &spec.CreateVolumeRequest{
		Name: name, CapacityRange: &spec.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*spec.VolumeCapability{mounted()},
	}
	for _, s := range sources {
		c.VolumeContentSource = s
	}
	return c
}

func mounted() *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

const mib = 1 << 20
