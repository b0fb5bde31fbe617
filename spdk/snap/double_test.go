package snap_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

// double starts SNAP's double and a client of it.
func double(t *testing.T, c spdktest.Config) (snap.SNAP, *spdk.Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "snap")
	if err != nil {
		t.Fatal(err)
	}
	c.SNAP, c.Socket = true, filepath.Join(dir, "snap.sock")
	p, err := spdktest.NewNetwork(nil).Start(c)
	if err != nil {
		t.Fatal(err)
	}
	client, err := spdk.Open(spdk.Config{Socket: c.Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), p.Close(), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	return snap.SNAP{RPC: client}, client
}

// step fails a test at the first call that fails.
func step(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// A bdev is exposed and hidden in the documented order, whatever way the
// process wraps its results.
func TestExposeBlock(t *testing.T) {
	for name, envelope := range map[string]bool{"plain": false, "envelope of SNAP 5": true} {
		t.Run(name, func(t *testing.T) {
			s, client := double(t, spdktest.Config{Flavour: spdktest.Fork, Envelope: envelope})
			ctx := t.Context()
			m, err := client.Methods(ctx)
			if err != nil || !snap.ExposesBlock(m) || !snap.ExposesFilesystems(m) {
				t.Fatalf("%v, %v", m.Names(), err)
			}
			file := filepath.Join(t.TempDir(), "disk")
			step(t, "file", os.WriteFile(file, make([]byte, 1<<20), 0o600))
			step(t, "bdev", client.CreateAIO(ctx, spdk.AIO{Name: "a", Filename: file, BlockSize: 512}))

			const nqn, uuid = "nqn.2022-10.io.nvda.nvme:dpf-a-00000000", "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b01"
			step(t, "subsystem", s.CreateSubsystem(ctx, nqn))
			step(t, "namespace", s.CreateNamespace(ctx, nqn, snap.Namespace{Bdev: "a", NSID: 1, UUID: uuid}))
			vuid, err := s.CreateFunction(ctx)
			step(t, "function", err)
			id, err := s.CreateController(ctx, snap.Controller{NQN: nqn, VUID: vuid, Suspended: true})
			step(t, "controller", err)
			step(t, "attach", s.AttachNamespace(ctx, id, 1))
			step(t, "resume", s.ResumeController(ctx, id))
			step(t, "plug", s.PlugController(ctx, id))

			all, err := s.Subsystems(ctx)
			step(t, "list", err)
			var found *snap.Namespace
			for _, sub := range all {
				for _, ns := range sub.Namespaces {
					if sub.NQN == nqn && ns.Bdev == "a" {
						found = &ns
					}
				}
			}
			if found == nil || found.NSID != 1 || found.UUID != uuid || len(found.Controllers) != 1 || found.Controllers[0].ID != id {
				t.Fatalf("%+v in %+v", found, all)
			}
			functions, err := s.Functions(ctx)
			step(t, "functions", err)
			plugged := false
			for _, f := range functions {
				plugged = plugged || f.EmulationType == snap.EmulationNVMe && f.Hotplugged && f.VUID == vuid && f.Controller == id && f.PCI != ""
			}
			if !plugged {
				t.Errorf("not plugged: %+v", functions)
			}

			step(t, "unplug", s.UnplugController(ctx, id))
			step(t, "detach", s.DetachNamespace(ctx, id, 1))
			step(t, "destroy the controller", s.DestroyController(ctx, id))
			step(t, "destroy the namespace", s.DestroyNamespace(ctx, nqn, 1))
			step(t, "destroy the function", s.DestroyFunction(ctx, vuid))
			step(t, "destroy the subsystem", s.DestroySubsystem(ctx, nqn))
			err = s.DestroyController(ctx, id)
			if refusal, ok := errors.AsType[*spdk.Error](err); !ok || (refusal.Status != "") != envelope {
				t.Errorf("the controller once more: %v", err)
			}
		})
	}
}

func TestExposeFilesystem(t *testing.T) {
	s, client := double(t, spdktest.Config{Flavour: spdktest.Fork})
	ctx := t.Context()
	step(t, "fsdev", client.CreateFsdev(ctx, "f", t.TempDir()))
	transports, err := s.Transports(ctx)
	step(t, "transports", err)
	if len(transports) == 0 {
		step(t, "make the transport", s.CreateTransport(ctx))
	}
	possible, err := s.PossibleManagers(ctx)
	step(t, "possible managers", err)
	if len(possible) == 0 {
		t.Fatal("nothing could emulate")
	}
	manager := possible[0].Name
	managers, err := s.Managers(ctx)
	step(t, "managers", err)
	if len(managers) == 0 {
		step(t, "make the manager", s.CreateManager(ctx, manager))
	}
	if transports, err = s.Transports(ctx); err != nil || len(transports) != 1 {
		t.Fatalf("%+v, %v", transports, err)
	}
	if transports[0].State != "started" {
		step(t, "start the transport", s.StartTransport(ctx))
	}
	vuid, err := s.CreateFSFunction(ctx, manager)
	step(t, "function", err)
	step(t, "device", s.CreateFSDevice(ctx, snap.NewFSDevice{Name: "dev_f", Fsdev: "f", Tag: "ftag", Queues: 8, QueueSize: 256}))
	step(t, "place", s.PlaceFSDevice(ctx, "dev_f", manager, vuid))
	step(t, "start", s.StartFSDevice(ctx, "dev_f"))
	step(t, "plug", s.PlugFSDevice(ctx, "dev_f"))
	devices, err := s.FSDevices(ctx)
	if err != nil || len(devices) != 1 || devices[0].Name != "dev_f" || devices[0].Fsdev != "f" || devices[0].State != "running" {
		t.Errorf("%+v, %v", devices, err)
	}
	functions, err := s.FSFunctions(ctx)
	if err != nil || len(functions) != 1 || len(functions[0].Functions) == 0 {
		t.Errorf("%+v, %v", functions, err)
	}
	step(t, "unplug", s.UnplugFSDevice(ctx, "dev_f"))
	step(t, "stop", s.StopFSDevice(ctx, "dev_f"))
	step(t, "destroy the device", s.DestroyFSDevice(ctx, "dev_f"))
	step(t, "destroy the function", s.DestroyFSFunction(ctx, manager, vuid))
	step(t, "delete the fsdev", client.DeleteFsdev(ctx, "f"))
}
