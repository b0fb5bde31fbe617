//go:build ceph

// Package ceph tests cleat csi with engine ceph as processes on a cluster of
// the test: what needs no kernel client.
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

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
)

// shared are the cluster, and a cleat with Ceph's libraries and crash points.
var shared struct {
	*cephtest.Cluster
	cleat, suite string
	pools        atomic.Int64
}

func TestMain(m *testing.M) {
	code := testkit.RunMain(m, func(dir string) (err error) {
		shared.cleat = filepath.Join(dir, "cleat")
		if err := testkit.BuildTo(context.Background(), shared.cleat, testkit.Cleat, "-tags", "ceph,pacific,crashpoints"); err != nil {
			return err
		}
		c := filepath.Join(dir, "c")
		if err := os.Mkdir(c, 0o700); err != nil {
			return err
		}
		if shared.Cluster, err = cephtest.Run(c, cephtest.Options{}); err != nil {
			return err
		}
		// The images of killed processes count as open for this long.
		_, err = shared.Command("config", "set", "osd", "osd_client_watch_timeout", "10")
		return err
	})
	if shared.Cluster != nil {
		shared.Stop()
	}
	os.Exit(code)
}

// rig is one installation with a pool of its own.
type rig struct {
	testing.TB
	dir, pool string
	flags     []string // of every process
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{TB: t, dir: testkit.Dir(t), pool: fmt.Sprintf("pool-%d", shared.pools.Add(1))}
	testkit.Must(t, shared.CreatePool(r.pool))
	config := testkit.Value(json.Marshal([]map[string]any{{"clusterID": "test", "monitors": shared.Monitors()}}))(t)
	secret := filepath.Join(r.dir, "secret")
	testkit.Must(t,
		os.Mkdir(secret, 0o700),
		os.WriteFile(filepath.Join(r.dir, "config.json"), config, 0o600),
		os.WriteFile(filepath.Join(secret, "userID"), []byte("admin"), 0o600),
		os.WriteFile(filepath.Join(secret, "userKey"), []byte(shared.AdminKey()), 0o600),
	)
	r.flags = []string{
		"--engine", "ceph", "--ceph-cluster", "test", "--ceph-pool", r.pool,
		"--ceph-config", filepath.Join(r.dir, "config.json"), "--ceph-secret", secret,
	}
	return r
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
		AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: "ext4"}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

const mib = 1 << 20
