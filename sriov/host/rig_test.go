package host

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	pfAddress  = "0000:3b:00.0"
	pf2Address = "0000:5e:00.0"
	vf0        = "0000:3b:02.0"
	vf1        = "0000:3b:02.1"
	vf2        = "0000:3b:02.2"
	mac        = "02:00:5e:aa:00:01"
)

type rig struct {
	*testing.T
	tree   *sysfstest.Tree
	budget *budget
	host   *Host
}

// Changes before the process is killed.
type budget struct {
	mu   sync.Mutex
	left int
	done int
}

var errKilled = errors.New("the process was killed")

func (b *budget) take() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 {
		return errKilled
	}
	b.left--
	b.done++
	return nil
}

func (b *budget) changes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

func newRig(t *testing.T) *rig {
	t.Helper()
	tree := sysfstest.New(t)
	tree.Strict()
	tree.Add(sysfstest.Function{
		Address: pfAddress, Vendor: "8086", Device: "10c9", Driver: "igb", Netdev: "eth0", IOMMUGroup: "7",
		TotalVFs: 4, VFDevice: "10ca", VFDriver: "igbvf",
	})
	tree.Add(sysfstest.Function{
		Address: pf2Address, Vendor: "15b3", Device: "1017", Driver: "mlx5_core", Netdev: "ib0", IOMMUGroup: "8",
		TotalVFs: 4, VFDevice: "1018", VFDriver: "mlx5_core",
	})
	tree.ESwitch(pf2Address, nodestate.Legacy)
	testkit.Must(t, tree.LoadDriver("pci", "igbvf"))
	r := &rig{T: t, tree: tree}
	r.restart(-1)
	return r
}

// -1 is never.
func (r *rig) restart(changes int) {
	r.Helper()
	r.budget = &budget{left: changes}
	b := r.budget
	r.host = New(Config{
		Sysfs: r.tree.Sysfs, Links: sysfstest.Links{Tree: r.tree}, Network: counted{sysfstest.Network{Tree: r.tree, Mode: "shared"}, b},
		Write: func(name, value string) error {
			if err := b.take(); err != nil {
				return err
			}
			return r.tree.Write(name, value)
		},
		LoadModule: func(_ context.Context, name string) error {
			if bus, known := map[string]string{"vfio-pci": "pci", "vhost_vdpa": "vdpa", "virtio_vdpa": "vdpa"}[name]; known {
				return r.tree.LoadDriver(bus, name)
			}
			return errors.New("modprobe: module not found")
		},
	})
	r.host.bounds = bounds{
		numVFs: 2 * time.Minute, step: 2 * time.Minute, read: 2 * time.Minute,
		effect: 100 * time.Millisecond, created: 100 * time.Millisecond, grace: 100 * time.Millisecond,
	}
}

type counted struct {
	sysfstest.Network
	b *budget
}

func (c counted) SetMTU(ctx context.Context, name string, mtu int) error {
	return c.then(func() error { return c.Network.SetMTU(ctx, name, mtu) })
}

func (c counted) SetUp(ctx context.Context, name string) error {
	return c.then(func() error { return c.Network.SetUp(ctx, name) })
}

func (c counted) SetMAC(ctx context.Context, name string, vf int, mac net.HardwareAddr) error {
	return c.then(func() error { return c.Network.SetMAC(ctx, name, vf, mac) })
}

func (c counted) SetTrust(ctx context.Context, name string, vf int, on bool) error {
	return c.then(func() error { return c.Network.SetTrust(ctx, name, vf, on) })
}

func (c counted) SetSpoofCheck(ctx context.Context, name string, vf int, on bool) error {
	return c.then(func() error { return c.Network.SetSpoofCheck(ctx, name, vf, on) })
}

func (c counted) SetGUIDs(ctx context.Context, name string, vf int, node, port uint64) error {
	return c.then(func() error { return c.Network.SetGUIDs(ctx, name, vf, node, port) })
}

func (c counted) SetVLAN(ctx context.Context, name string, vf, vlan, qos int, qinq bool) error {
	return c.then(func() error { return c.Network.SetVLAN(ctx, name, vf, vlan, qos, qinq) })
}

func (c counted) SetRates(ctx context.Context, name string, vf, lowest, highest int) error {
	return c.then(func() error { return c.Network.SetRates(ctx, name, vf, lowest, highest) })
}

func (c counted) SetLinkState(ctx context.Context, name string, vf, state int) error {
	return c.then(func() error { return c.Network.SetLinkState(ctx, name, vf, state) })
}

func (c counted) SetESwitch(ctx context.Context, address, mode string) error {
	return c.then(func() error { return c.Network.SetESwitch(ctx, address, mode) })
}

func (c counted) SetFlowSteering(ctx context.Context, address, mode string) error {
	return c.then(func() error { return c.Network.SetFlowSteering(ctx, address, mode) })
}

func (c counted) SetTCOffload(ctx context.Context, name string) error {
	return c.then(func() error { return c.Network.SetTCOffload(ctx, name) })
}

func (c counted) AddVDPA(ctx context.Context, name, address string) error {
	return c.then(func() error { return c.Network.AddVDPA(ctx, name, address) })
}

func (c counted) DeleteVDPA(ctx context.Context, name string) error {
	return c.then(func() error { return c.Network.DeleteVDPA(ctx, name) })
}

func (c counted) then(change func() error) error {
	if err := c.b.take(); err != nil {
		return err
	}
	return change()
}

func (r *rig) do(steps ...plan.Step) {
	r.Helper()
	for _, s := range steps {
		if err := r.host.Do(r.Context(), s); err != nil {
			r.Fatalf("%s: %v", s, err)
		}
	}
}

func (r *rig) read() plan.State {
	r.Helper()
	return testkit.Value(r.host.Read(r.Context()))(r)
}

func (r *rig) virtual(index int) plan.VF {
	r.Helper()
	s := r.read()
	i := slices.IndexFunc(s.PFs[0].VFs, func(v plan.VF) bool { return v.Index == index })
	if i < 0 {
		r.Fatalf("no virtual function %d in %+v", index, s)
	}
	return s.PFs[0].VFs[i]
}

func (r *rig) override(address string) string {
	r.Helper()
	f := testkit.Value(r.host.function(address))(r)
	defer f.dir.Close()
	return testkit.Value(f.override())(r)
}
