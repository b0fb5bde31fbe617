package power

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/crash/workload/site"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/power/remote"
)

// Paths in the guest. Only the data disk survives a reboot.
const (
	dataDir    = "/data"
	poolDir    = dataDir + "/pool"
	stateDir   = dataDir + "/state"
	workersDir = dataDir + "/workers"
	csiSocket  = "/run/cleat/csi.sock"
	metrics    = "/run/cleat-metrics/metrics.sock"
	aside      = "/run/inside.sock"
	hits       = "/run/hits"
)

// machine is a guest that loses power when its driver is killed. The pool, the
// records and the workers' directories are on one disk with a volatile cache.
type machine struct {
	log    func(format string, args ...any)
	spec   vm.Spec
	drive  *disk.Disk
	path   string // of the disk's file on the host
	fsType string
	flags  []string // passed to every start of the driver

	order *disk.Trigger // armed once the next driver is ready
	early *disk.Trigger // armed when the next driver starts

	mu     sync.Mutex
	guest  *vm.Guest      // nil while powered off
	inside *remote.Client // nil while powered off
}

var _ workload.Machine = (*machine)(nil)

// Reboots implements workload.Machine.
func (m *machine) Reboots() bool { return true }

// Launch implements workload.Machine: it boots the guest if needed and starts
// the driver.
func (m *machine) Launch(ctx context.Context, point string) (workload.Driver, error) {
	if m.up() == nil {
		if err := m.boot(ctx); err != nil {
			return nil, err
		}
	}
	argv := append([]string{"/usr/bin/cleat", "csi", "--endpoint", "unix://" + csiSocket, "--state-dir", stateDir, "--pool", poolDir,
		"--metrics-address", metrics, "--node-id", workload.NodeID, "--controller-publish", "--overprovision-ratio", "20", "--log-format", "text"}, m.flags...)
	var env []string
	if point != "" {
		env = []string{"CLEAT_CRASHPOINT=" + point, "CLEAT_CRASHPOINT_LOG=" + hits, "CLEAT_CRASHPOINT_ACTION=freeze"}
	}
	if err := m.arm(&m.early); err != nil {
		return nil, err
	}
	process, err := m.guest.Start(ctx, vm.Command{Argv: argv, Env: env})
	if err != nil {
		return nil, err
	}
	r := &running{machine: m, guest: m.guest, process: process, done: make(chan struct{})}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.cancel = cancel
	go r.watch(watch, point != "")
	if err := r.connect(ctx); err != nil {
		err = errors.Join(err, r.Kill(), errors.New(r.Log()))
		if r.Hit() {
			return nil, workload.ErrAtPoint
		}
		return nil, err
	}
	return r, m.arm(&m.order)
}

// arm arms and clears a trigger, if set.
func (m *machine) arm(order **disk.Trigger) error {
	if *order == nil {
		return nil
	}
	o := **order
	*order = nil
	return m.drive.LosePowerAt(o)
}

func (m *machine) up() *vm.Guest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.guest
}

// boot boots the guest, which mounts the disk.
func (m *machine) boot(ctx context.Context) error {
	if err := m.drive.PowerOn(); err != nil {
		return err
	}
	g, err := vm.Launch(ctx, m.spec, m.log)
	if err != nil {
		return err
	}
	inside, err := m.enter(ctx, g)
	if err != nil {
		return errors.Join(err, errors.New(end(g.Console())), g.Close())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.guest, m.inside = g, inside
	return nil
}

// enter starts the helper program and connects to it.
func (m *machine) enter(ctx context.Context, g *vm.Guest) (*remote.Client, error) {
	p, err := g.Start(ctx, vm.Command{Argv: []string{"/usr/bin/inside", "-socket", aside, "-hits", hits,
		"-device", "/dev/vda", "-fs-type", m.fsType, "-data", dataDir, "-workers", workersDir, "-pool", poolDir}})
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := g.Dial(ctx, "unix", aside)
		if err == nil {
			return remote.NewClient(conn), nil
		}
		select {
		case <-p.Done():
			return nil, errors.Join(errors.New("the guest's helper program exited"), p.Err())
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// losePower powers the guest off without shutdown.
func (m *machine) losePower() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.guest == nil {
		return nil
	}
	err := m.guest.LosePower()
	_ = m.inside.Close() // the guest's end is closed already
	m.guest, m.inside = nil, nil
	return err
}

// shutdown shuts the guest down cleanly, so that its disk can be checked.
func (m *machine) shutdown(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.guest == nil {
		return errors.New("no guest is running")
	}
	_ = m.inside.Close()
	err := m.guest.Shutdown(ctx)
	m.guest, m.inside = nil, nil
	return err
}

// down converts remote.ErrGone to workload.ErrDown.
func down(err error) error {
	if errors.Is(err, remote.ErrGone) {
		return fmt.Errorf("%w: %w", workload.ErrDown, err)
	}
	return err
}

func (m *machine) beside() (*remote.Client, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inside == nil {
		return nil, workload.ErrDown
	}
	return m.inside, nil
}

// Write implements workload.Machine.
func (m *machine) Write(ctx context.Context, at site.Spot, seed uint64, sync bool) error {
	c, err := m.beside()
	if err != nil {
		return err
	}
	return down(c.Write(ctx, at, seed, sync))
}

// Check implements workload.Machine.
func (m *machine) Check(ctx context.Context, at site.Spot, seeds ...uint64) error {
	c, err := m.beside()
	if err != nil {
		return err
	}
	return down(c.Check(ctx, at, seeds...))
}

// Look implements workload.Machine.
func (m *machine) Look(ctx context.Context) (site.Snapshot, error) {
	c, err := m.beside()
	if err != nil {
		return site.Snapshot{}, err
	}
	view, err := c.Look(ctx)
	return view, down(err)
}

// MakeDir implements workload.Machine.
func (m *machine) MakeDir(ctx context.Context, path string) error {
	c, err := m.beside()
	if err != nil {
		return err
	}
	return down(c.MakeDir(ctx, path))
}

// Remove implements workload.Machine.
func (m *machine) Remove(ctx context.Context, path string) error {
	c, err := m.beside()
	if err != nil {
		return err
	}
	return down(c.Remove(ctx, path))
}

// newMachine returns a machine with a new, formatted disk.
func newMachine(t *testing.T, name, cleat, inside string, fsType string, seed uint64, slots *vm.Slots, flags ...string) *machine {
	t.Helper()
	const size = 6 << 30
	path := filepath.Join(t.TempDir(), name+".disk")
	format(t, fsType, path, size)
	d := testkit.Value(disk.Open(disk.Spec{Path: path, Size: size, Seed: seed}))(t)
	m := &machine{
		log: t.Logf, drive: d, path: path, fsType: fsType, flags: flags,
		spec: vm.Spec{
			Name: name, Disks: []vm.Disk{d}, Slots: slots,
			Modules: []string{"loop", "xfs", "ext4", "btrfs"}, Tools: tools(),
			Files: map[string]string{"/usr/bin/cleat": cleat, "/usr/bin/inside": inside},
		},
	}
	t.Cleanup(func() {
		if err := errors.Join(m.losePower(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return m
}
