package table_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume/access"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const pool = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"

// rig is a table on a store of its own, which can be opened anew.
type rig struct {
	t     testing.TB
	path  string
	store *store.Store
	*table.Table
}

func newRig(t testing.TB, dir string) *rig {
	t.Helper()
	r := &rig{t: t, path: filepath.Join(dir, "dpu.db")}
	r.open()
	return r
}

func (r *rig) open() {
	r.t.Helper()
	var err error
	if r.store, err = store.Open(r.t.Context(), r.path, store.Options{Role: table.Role, Version: table.Version}); err != nil {
		r.t.Fatal(err)
	}
	if r.Table, err = table.Open(r.t.Context(), r.store); err != nil {
		_ = r.store.Close()
		r.t.Fatal(err)
	}
}

func (r *rig) close() {
	r.t.Helper()
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

func open(t testing.TB) *rig {
	t.Helper()
	r := newRig(t, t.TempDir())
	t.Cleanup(r.close)
	return r
}

func (r *rig) put(d table.Device, objects ...table.Object) {
	r.t.Helper()
	if err := r.Put(r.t.Context(), d, objects...); err != nil {
		r.t.Fatal(err)
	}
}

// aio is an object on a file of the pool.
func aio(name, file string) table.Object {
	return table.Object{Object: plan.Object{ID: plan.ID{Kind: plan.AIO, Name: name}, AIO: &plan.AIOSpec{File: access.File{Pool: pool, Name: file}}}}
}

func controller(name string) table.Object {
	return table.Object{
		Object: plan.Object{ID: plan.ID{Kind: plan.Controller, Name: name}, Controller: &plan.ControllerSpec{
			Transport: "tcp", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4420")}, SubNQN: "nqn.2016-06.io.spdk:" + name, HostNQN: "nqn.2016-06.io.spdk:host",
		}},
		Foreign: true, As: "Nvme0", Doubt: time.Unix(1_700_000_000, 5).UTC(), Process: "p1",
	}
}

// device is that of a volume, which has been made of objects.
func device(volumeID, name string, objects ...table.Object) table.Device {
	d := table.Device{
		Volume: volumeID, Name: name, Phase: table.Making, Mode: request.Block, Modes: []storagev1.AccessMode{1, 3},
		Contexts:  request.Contexts{Volume: map[string]string{"nqn": volumeID}},
		Namespace: plan.Choice{NSID: 1}, Process: "p1", Since: time.Unix(1_700_000_000, 7).UTC(),
	}
	for _, o := range objects {
		d.Objects = append(d.Objects, o.ID)
	}
	return d
}

func volumeOf(i int) string { return fmt.Sprintf("pvc-%06d", i) }
