// Package rig runs a double of an SPDK target with an lvol store, for tests of
// cleat csi --engine spdk as a process.
package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	// TargetName is the name of the target in the configuration.
	TargetName = "storage-1"
	discovery  = "nqn.2014-08.org.nvmexpress.discovery"
	mib        = 1 << 20
	address    = "198.51.100.1"
	port       = "4420"
)

// Target is a target process whose lvol store is in a file.
type Target struct {
	Process *spdktest.Process
	Client  *spdk.Client
	Config  string // file for --spdk-config
	disk    string
}

// NewTarget starts a target until the test ends.
func NewTarget(t testing.TB, network *spdktest.Network, storeMiB int64) *Target {
	t.Helper()
	dir := testkit.Dir(t)
	socket := filepath.Join(dir, "rpc.sock")
	r := &Target{Config: filepath.Join(dir, "config.yaml"), disk: filepath.Join(dir, "disk")}
	config := fmt.Sprintf("targets:\n- {name: %s, rpcURL: \"unix://%s\", targetType: nvme-tcp, addresses: [\"%s:%s\"]}\n", TargetName, socket, address, port)
	testkit.Must(t,
		os.WriteFile(r.Config, []byte(config), 0o600),
		os.WriteFile(r.disk, nil, 0o600),
		os.Truncate(r.disk, storeMiB*mib),
	)
	r.Process = testkit.Value(network.Start(spdktest.Config{Socket: socket, Addresses: []string{address}}))(t)
	t.Cleanup(func() { testkit.Must(t, r.Process.Close()) })
	r.Client = testkit.Open(spdk.Open(spdk.Config{Socket: socket}))(t)
	r.createDisk(t)
	testkit.Must(t, r.Client.Do(testkit.Context(t), "bdev_lvol_create_lvstore", map[string]any{"bdev_name": "disk", "lvs_name": "lvs0", "cluster_sz": mib}))
	return r
}

// createDisk creates the bdev of the store, as the configuration file of a
// target does when it starts.
func (r *Target) createDisk(t testing.TB) {
	t.Helper()
	testkit.Must(t, r.Client.CreateAIO(testkit.Context(t), spdk.AIO{Name: "disk", Filename: r.disk, BlockSize: 4096, Fallocate: true}))
}

// Restart restarts the process, which loses its exports and keeps the store.
func (r *Target) Restart(t testing.TB) {
	t.Helper()
	testkit.Must(t, r.Process.Restart())
	r.createDisk(t)
}

// Address is the listener of the exports.
func (r *Target) Address() spdktest.Address {
	return spdktest.Address{Transport: "TCP", Host: address, Port: port}
}

// CheckEmpty fails the test if the target has lvols or exports.
func (r *Target) CheckEmpty(t testing.TB) {
	t.Helper()
	for _, left := range r.Objects(t) {
		t.Errorf("the target still has %s", left)
	}
}

// Objects returns the lvols and exports of the target, as "lvol NAME" and
// "subsystem NQN".
func (r *Target) Objects(t testing.TB) (all []string) {
	t.Helper()
	ctx := testkit.Context(t)
	for _, s := range testkit.Value(r.Client.LvolStores(ctx))(t) {
		for _, l := range testkit.Value(r.Client.Lvols(ctx, s.UUID))(t) {
			all = append(all, "lvol "+l.Name)
		}
	}
	for _, s := range testkit.Value(r.Client.Subsystems(ctx))(t) {
		if s.NQN != discovery {
			all = append(all, "subsystem "+s.NQN)
		}
	}
	return all
}
