package plugin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

func (r *rig) wrong(words string) {
	r.t.Helper()
	testkit.Eventually(r.t, fmt.Sprintf("the plugin says %q", words), func() bool {
		err := r.plugin.Check(r.t.Context())
		return err == nil && words == "" || err != nil && words != "" && strings.Contains(err.Error(), words)
	})
}

type fullMemory struct {
	full    atomic.Bool
	records []grants.Record
	removed atomic.Int64
}

func (m *fullMemory) write() error {
	if m.full.Load() {
		return fmt.Errorf("write the record: %w", syscall.ENOSPC)
	}
	return nil
}

func (m *fullMemory) Put(context.Context, []grants.Record) error { return m.write() }
func (m *fullMemory) All() []grants.Record                       { return m.records }

func (m *fullMemory) Remove(_ context.Context, records []grants.Record) error {
	if err := m.write(); err != nil && len(records) > 0 {
		return err
	}
	m.removed.Add(int64(len(records)))
	return nil
}

func member(address string) inventory.Member {
	return inventory.Member{Device: inventory.Device{ID: address, Function: &inventory.Function{Address: address}}}
}

func TestRecordOnAFullDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	log, links := r.log(), r.counted()
	memory := &fullMemory{records: []grants.Record{grants.Of(resource, member("0000:3b:1f.0"), time.Now().Add(-time.Hour))}}
	memory.full.Store(true)
	r.config.Memory = memory
	r.start()
	r.awaitOffered(2)
	r.wrong("no space left")
	_, err := r.kubelet.Allocate(testkit.Context(r.t), resource, r.tree.Virtual(pfAddress)[0])
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("Allocate answered %v, want FAILED_PRECONDITION, since the disk is full", err)
	}
	r.setVFs(0)
	r.scans(links, 3)
	r.awaitOffered(0)
	r.loggedOnce(log, "cannot update allocation records")
	memory.full.Store(false)
	r.setVFs(3)
	r.scans(links, 1)
	r.awaitOffered(3)
	r.wrong("")
	if memory.removed.Load() == 0 {
		t.Error("the stale record was not removed when that was possible")
	}
	if _, err := r.kubelet.Allocate(testkit.Context(r.t), resource, r.tree.Virtual(pfAddress)[0]); err != nil {
		t.Errorf("Allocate answered %v with free disk space", err)
	}
}

func TestCDIDirectoryThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	log, links := r.log(), r.counted()
	const pf = "0000:3c:00.0"
	r.tree.Add(sysfstest.Function{Address: pf, Vendor: "8086", Device: "1572", Driver: "i40e", Netdev: "ens2", TotalVFs: 8, VFDevice: "154c", VFDriver: "igb_uio"})
	testkit.Must(t, r.tree.Write(sysfstest.Device(pf)+"/sriov_numvfs", "2"))
	for _, vf := range r.tree.Virtual(pf) {
		r.tree.AddUIO(vf)
	}
	r.configure(`{"resourceList": [
		{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"]}]},
		{"resourceName": "uio", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens2"]}]}]}`)
	r.config.CDI = true
	testkit.Must(t, os.WriteFile(r.config.Files.CDI, nil, 0o600))
	r.start()
	r.awaitOffered(2)
	r.wrong("CDI specification of example.com/uio")
	if n := r.kubelet.Allocatable("example.com/uio"); n != 0 {
		t.Errorf("%d devices are offered that no runtime knows", n)
	}
	for _, x := range r.plugin.Document().Resources {
		if x.Name == "example.com/uio" && (len(x.Members) != 2 || !strings.Contains(x.Members[0].Wrong, "CDI")) {
			t.Errorf("the status says of the devices %+v, want why they are not offered", x.Members)
		}
	}
	r.await("it is registered", func() bool { return slices.Contains(r.kubelet.Resources(), "example.com/uio") })
	r.await("the list came", func() bool { return len(r.kubelet.Lists("example.com/uio")) > 0 })
	if _, err := r.kubelet.AllocateAny(testkit.Context(r.t), "example.com/uio", r.tree.Virtual(pf)[0]); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Allocate answered %v, want FAILED_PRECONDITION", err)
	}
	r.scans(links, 3)
	r.loggedOnce(log, "cannot write device files")
	testkit.Must(t, os.Remove(r.config.Files.CDI))
	r.await("the devices are offered, without a change event", func() bool { return r.kubelet.Allocatable("example.com/uio") == 2 })
	r.wrong("")
}

func TestDeviceInfoDirectoryThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	testkit.Must(t, os.WriteFile(r.config.Files.DeviceInfo, nil, 0o600))
	r.start()
	r.awaitOffered(1)
	_, err := r.kubelet.Allocate(testkit.Context(r.t), resource, r.tree.Virtual(pfAddress)[0])
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "Multus") || !strings.Contains(err.Error(), r.config.Files.DeviceInfo) {
		t.Errorf("Allocate answered %v, want FAILED_PRECONDITION and the directory", err)
	}
	testkit.Must(t, os.Remove(r.config.Files.DeviceInfo))
	if _, err := r.kubelet.Allocate(testkit.Context(r.t), resource, r.tree.Virtual(pfAddress)[0]); err != nil {
		t.Errorf("Allocate answered %v once the directory can be made", err)
	}
}

func (r *rig) firstMember() inventory.Member {
	r.t.Helper()
	found := testkit.Value(inventory.Discover(r.t.Context(), r.config.Discovery))(r.t)
	first := r.tree.Virtual(pfAddress)[0]
	i := slices.IndexFunc(found.Functions, func(f inventory.Function) bool { return f.Address == first })
	return inventory.Member{Device: inventory.Device{ID: first, Function: &found.Functions[i]}}
}

func TestRecordsWhilePodResourcesFails(t *testing.T) {
	t.Parallel()
	var r *rig
	var log *testkit.Log
	var links *links
	var record grants.Record
	memory := &fullMemory{}
	// PodResources answers before the grace period ends.
	for while, spoke := 1500*time.Millisecond, false; !spoke; while *= 2 {
		r = newRig(t, 2)
		log, links = r.log(), r.counted()
		record = grants.Of(resource, r.firstMember(), time.Now().Add(while-grants.Grace))
		memory.records, r.config.Memory = []grants.Record{record}, memory
		r.start()
		r.awaitOffered(2)
		r.pods.fail(errors.New("it hangs"))
		if spoke = time.Since(record.At) < grants.Grace; !spoke {
			r.stop()
			memory.removed.Store(0)
		}
	}
	testkit.Eventually(r.t, "the record is old", func() bool { return time.Since(record.At) > grants.Grace })
	r.scans(links, 3)
	if n := memory.removed.Load(); n != 0 {
		t.Errorf("%d records were dropped by a word that is older than they are", n)
	}
	testkit.Eventually(r.t, "it is held", func() bool {
		for _, m := range r.plugin.Document().Resources[0].Members {
			if m.ID == record.ID {
				return m.Held
			}
		}
		return false
	})
	r.loggedOnce(log, "PodResources query failed")
	r.pods.fail(nil)
	testkit.Eventually(r.t, "PodResources reports no holder", func() bool {
		r.scans(links, 1)
		return memory.removed.Load() > 0
	})
}

func TestLastKnownHoldersCount(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	links := r.counted()
	vfs := r.tree.Virtual(pfAddress)
	r.pods.hold(podresources.Holder{Resource: resource, ID: vfs[1], Pod: "p"})
	held := func() bool {
		for _, m := range r.plugin.Document().Resources[0].Members {
			if m.ID == vfs[1] {
				return m.Held
			}
		}
		return false
	}
	r.start()
	r.awaitOffered(2)
	testkit.Eventually(r.t, "it is held", held)
	r.pods.fail(podresources.ErrNotServed)
	r.scans(links, 3)
	if !held() {
		t.Error("a device that a pod has counts as free while the kubelet is away")
	}
}

func TestScanFailureKeepsDevices(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Interval = time.Hour
	log, links := r.log(), r.counted()
	r.start()
	r.awaitOffered(2)
	links.fails.Store(true)
	r.scans(links, 1) // that had already read the links
	r.setVFs(0)
	r.scans(links, 3)
	r.wrong("too many open files")
	if n := r.kubelet.Allocatable(resource); n != 2 {
		t.Errorf("%d devices are offered by a look that failed, want the 2 of the one before", n)
	}
	r.loggedOnce(log, "scan failed")
	links.fails.Store(false)
	r.awaitOffered(0)
	r.wrong("")
}

func TestMissingSysfsKeepsDevices(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	links := r.counted()
	r.start()
	r.awaitOffered(2)
	for _, dir := range []string{"bus/pci/devices", "bus", "class/net"} {
		path := filepath.Join(r.tree.Sysfs, dir)
		testkit.Must(t, os.Rename(path, path+".away"), os.WriteFile(path, nil, 0o600))
		r.scans(links, 2)
		r.wrong(dir)
		if n := r.kubelet.Allocatable(resource); n != 2 {
			t.Errorf("%d devices are offered without %s, want the 2 of the look before", n, dir)
		}
		testkit.Must(t, os.Remove(path), os.Rename(path+".away", path))
		r.changes <- struct{}{}
		r.wrong("")
	}
}

func TestEnableRetriesAFailedScan(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Controlled, r.config.Interval = true, time.Hour
	log, links := r.log(), r.counted()
	links.fails.Store(true)
	r.start()
	r.enable(r.t.Name(), gate.Claim{Generation: 1})
	before := links.scans.Load()
	testkit.Eventually(r.t, "it tries again and again", func() bool { return links.scans.Load() > before+3 })
	if names := r.kubelet.Resources(); len(names) != 0 {
		t.Errorf("the kubelet knows %v", names)
	}
	r.loggedOnce(log, "scan failed")
	links.fails.Store(false)
	r.awaitOffered(2)
}

func TestRepeatedRegistrationFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	log := r.log()
	r.kubelet.Refuse(errors.New("not today"))
	r.start()
	r.wrong("not today")
	r.await("it is tried again", func() bool { return r.kubelet.Registrations(resource) > 1 })
	r.await("it is tried again", func() bool {
		testkit.WantError(t, "the plugin is well between two refusals", r.plugin.Check(t.Context()), nil)
		return r.kubelet.Registrations(resource) > 2
	})
	r.loggedOnce(log, "registration with the kubelet failed")
	if n := strings.Count(log.String(), "plugin state changed"); n > 5 {
		t.Errorf("the log has %d changes of state", n)
	}
}

type registry struct {
	register func(ctx context.Context, r plugin.Registration) error
	forget   func(ctx context.Context, resource string) error
}

func (g *registry) Register(ctx context.Context, r plugin.Registration) error {
	return g.register(ctx, r)
}

func (g *registry) Forget(ctx context.Context, resource string) error {
	if g.forget == nil {
		return nil
	}
	return g.forget(ctx, resource)
}

// Otherwise it would remove its successor's registration.
func TestRestoredResourceWaitsForItsPredecessor(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	links := r.counted()
	forgetting, proceed := make(chan struct{}), make(chan struct{})
	var forgotten atomic.Bool
	var registered atomic.Int64
	r.config.Registrar = &registry{
		register: func(ctx context.Context, g plugin.Registration) error {
			if registered.Add(1) == 2 && !forgotten.Load() {
				t.Error("the successor registers before its predecessor is forgotten")
			}
			return plugin.Kubelet{Dir: r.config.EndpointDir}.Register(ctx, g)
		},
		forget: func(ctx context.Context, _ string) error {
			if registered.Load() == 1 {
				close(forgetting)
				select {
				case <-proceed:
				case <-ctx.Done():
				}
			}
			forgotten.Store(true)
			return nil
		},
	}
	r.start()
	r.awaitOffered(2)
	r.configure(`{"resourceList": []}`)
	<-forgetting
	r.configure(oneResource)
	hash := plugin.Hash([]byte(oneResource))
	testkit.Eventually(r.t, "the configuration is in force", func() bool { return r.plugin.Document().ConfigHash == hash })
	r.scans(links, 3) // for a successor that does not wait
	close(proceed)
	r.awaitOffered(2)
	if n := registered.Load(); n != 2 {
		t.Errorf("registered %d times, want twice", n)
	}
}

func TestReplacedRegistrationIsNotReported(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	log := r.log()
	way := plugin.Kubelet{Dir: r.config.EndpointDir}
	overtaken := make(chan struct{})
	var tries atomic.Int64
	r.config.Registrar = &registry{register: func(ctx context.Context, g plugin.Registration) error {
		if tries.Add(1) > 1 { // the previous attempt ends
			close(overtaken)
			return way.Register(ctx, g)
		}
		err := way.Register(ctx, g) // answer lost
		err = errors.Join(err, r.kubelet.Await(ctx, func() bool { return len(r.kubelet.Lists(resource)) > 0 }))
		r.kubelet.Drop(resource)
		select {
		case <-overtaken:
			return errors.Join(err, errors.New("the registration socket is no longer served"))
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	r.start()
	r.await("the second try", func() bool { return tries.Load() == 2 && r.kubelet.Allocatable(resource) == 2 })
	r.wrong("")
	if n := strings.Count(log.String(), "registration socket is closed"); n != 0 {
		t.Errorf("the log has %d errors of a replaced attempt", n)
	}
}

func TestStopWhileTheKubeletHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Bound = 2 * testkit.Timeout
	entered := make(chan struct{}, 1)
	r.config.Registrar = &registry{register: func(ctx context.Context, g plugin.Registration) error {
		if !g.Options.GetPreferredAllocationAvailable {
			t.Error("GetPreferredAllocation is not announced")
		}
		entered <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	r.start()
	<-entered
	r.stop()
}

func TestStopBeforeRunAndTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	p := testkit.Value(plugin.New(r.config))(t)
	// Its endpoints end meanwhile, so that it is stopped, or not yet.
	if err := p.Stop(testkit.Canceled(t)); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("to stop what does not run: %v", err)
	}
	if err := p.Run(testkit.Context(r.t)); err != nil {
		t.Errorf("run: %v", err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("to stop again: %v", err)
	}
	testkit.WantError(t, "a plugin that ran runs again", p.Run(testkit.Context(r.t)), nil)
	if names := r.kubelet.Resources(); len(names) != 0 {
		t.Errorf("the kubelet knows %v", names)
	}
}

func TestContextEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	p := testkit.Value(plugin.New(r.config))(t)
	r.plugin = p
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	r.awaitOffered(2)
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(r.config.EndpointDir, plugin.SocketName(resource))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	testkit.WantError(t, "a plugin that has ended answers", testkit.Err(p.Disable(t.Context(), "")), nil)
	testkit.WantError(t, "a plugin that has ended answers", testkit.Err(p.Heartbeat("s")), nil)
	s := plugintest.Enable(t.Context(), p, "s", gate.Claim{})
	if over := r.end(s); over.Code != codes.Unavailable {
		t.Errorf("a stream to a plugin that has ended ends with %v", over)
	}
}

func TestConfigurationDirectoryGoes(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Interval = time.Hour
	r.start()
	r.awaitOffered(2)
	dir := filepath.Dir(r.config.ConfigFile)
	for _, away := range []func() error{
		func() error { return os.RemoveAll(dir) },
		func() error { return os.Rename(dir, dir+".old") },
	} {
		testkit.Must(t, away())
		r.wrong("no such file")
		if n := r.kubelet.Allocatable(resource); n != 2 {
			t.Errorf("%d devices are offered without a configuration, want the 2 of the last one", n)
		}
		r.configure(oneResource)
		r.wrong("")
	}
	r.configure(strings.ReplaceAll(oneResource, `"ens1"`, `"ens1#0"`))
	r.awaitOffered(1)
}

func TestConfigMapIsSwapped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Interval = time.Hour
	dir := filepath.Dir(r.config.ConfigFile)
	swap := func(version, text string) {
		t.Helper()
		testkit.Must(t, errors.Join(os.Mkdir(filepath.Join(dir, version), 0o755),
			os.WriteFile(filepath.Join(dir, version, "config.json"), []byte(text), 0o644),
			os.Symlink(version, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))))
	}
	testkit.Must(t, os.Remove(r.config.ConfigFile), os.Symlink("..data/config.json", r.config.ConfigFile))
	swap("..1", oneResource)
	r.start()
	r.awaitOffered(2)
	swap("..2", strings.ReplaceAll(oneResource, `"ens1"`, `"ens1#1"`))
	r.awaitOffered(1)
}

func TestConfigurationStorm(t *testing.T) {
	t.Parallel()
	r := newRig(t, 4)
	r.config.Interval = time.Hour
	links := r.counted()
	r.start()
	r.awaitOffered(4)
	before, began := links.scans.Load(), time.Now()
	for i := 0; time.Since(began) < 2*time.Second; i++ {
		r.configure(strings.ReplaceAll(oneResource, `"ens1"`, fmt.Sprintf(`"ens1#0-%d"`, i%4)) + strings.Repeat(" ", i%100))
	}
	r.configure(strings.ReplaceAll(oneResource, `"ens1"`, `"ens1#2"`))
	r.awaitOffered(1)
	// Two per read; reads come every 100 ms.
	if n, most := links.scans.Load()-before, int64(2*time.Since(began)/(100*time.Millisecond))+5; n > most {
		t.Errorf("%d scans, want at most %d", n, most)
	}
}

func TestKubeletDirectoryIsRecreated(t *testing.T) {
	t.Parallel()
	r := newOffering(t, 2)
	r.kubelet.Stop()
	testkit.Must(t, os.RemoveAll(r.config.EndpointDir))
	r.await("the loss shows", func() bool { return r.kubelet.Allocatable(resource) == 0 })
	testkit.Must(t, r.kubelet.Start())
	r.awaitOffered(2)
	r.wrong("")
}

func TestScanWithAnOldConfigurationIsDropped(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Interval = time.Hour
	links := r.counted()
	r.start()
	r.awaitOffered(2)
	links.lock.Lock()
	r.setVFs(0)
	r.setVFs(3)
	r.changes <- struct{}{}
	r.changes <- struct{}{}
	next := strings.ReplaceAll(oneResource, `"ens1"`, `"ens1#0"`)
	r.configure(next)
	testkit.Eventually(r.t, "the configuration is in force", func() bool { return r.plugin.Document().ConfigHash == plugin.Hash([]byte(next)) })
	links.lock.Unlock()
	r.awaitOffered(1)
	for _, l := range r.kubelet.Lists(resource) {
		if len(l.Healthy) == 3 {
			t.Error("what the old configuration selects was offered after the new one was in force")
		}
	}
}

func TestWithdrawalWithoutPodResources(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.config.Controlled = true
	r.pods.fail(podresources.ErrNotServed)
	r.start()
	r.enable(r.t.Name(), gate.Claim{Generation: 1})
	r.awaitOffered(1)
	before := r.pods.asked.Load()
	if d, err := r.plugin.Disable(testkit.Context(r.t), ""); err != nil || !d.Acknowledged || d.Confirmed {
		t.Errorf("Disable: %+v, %v; want OK, and not confirmed", d, err)
	}
	if n := r.pods.asked.Load() - before; n != 1 {
		t.Errorf("the kubelet was asked %d times what it offers, want once", n)
	}
}

// A kubelet that does not answer might still offer the devices.
func TestWithdrawalWaitsForPodResources(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.config.Controlled = true
	r.start()
	r.enable(r.t.Name(), gate.Claim{Generation: 1})
	r.awaitOffered(1)
	r.pods.fail(errors.New("the kubelet hangs"))
	var result gate.Withdrawal
	done := make(chan error, 1)
	go func() {
		var err error
		result, err = r.plugin.Disable(testkit.Context(r.t), "")
		done <- err
	}()
	testkit.Eventually(r.t, "the answer is missed, or Disable returns", func() bool {
		return strings.Contains(r.plugin.Document().Resources[0].Error, "the kubelet hangs") || len(done) > 0
	})
	r.pods.hold(podresources.Holder{Resource: resource, ID: "x", Pod: "p"})
	r.pods.fail(nil)
	if err := testkit.Receive(r.t, "Disable returns", done); err != nil || !result.Confirmed || len(result.InUse) != 1 {
		t.Errorf("Disable: %+v, %v; want OK, confirmed, and the holder", result, err)
	}
}

func TestConfigurationIsNotARegularFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	for words, make := range map[string]func(path string) error{
		"at most": func(path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte(" "), inventory.MaxConfigSize+1), 0o600)
		},
		"is not a regular file": func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		testkit.Must(t, os.RemoveAll(r.config.ConfigFile), make(r.config.ConfigFile))
		testkit.WantError(t, "New", testkit.Err(plugin.New(r.config)), nil, words)
	}
}

func TestAllocationsAreCounted(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	registry := prometheus.NewRegistry()
	r.config.Metrics = registry
	memory := &fullMemory{}
	r.config.Memory = memory
	r.start()
	r.awaitOffered(2)
	vf := r.tree.Virtual(pfAddress)[0]
	for range 2 {
		testkit.Value(r.kubelet.Allocate(testkit.Context(r.t), resource, vf))(t)
	}
	_, refused := r.kubelet.AllocateAny(testkit.Context(r.t), resource, "unknown")
	memory.full.Store(true)
	if _, failed := r.kubelet.Allocate(testkit.Context(r.t), resource, vf); refused == nil || failed == nil {
		t.Fatalf("%v, %v; want that both fail", refused, failed)
	}
	for result, want := range map[string]float64{"ok": 2, "refused": 1, "failed": 1} {
		if n := testkit.Metric(t, registry, "cleat_sriov_allocations_total", "result="+result); n != want {
			t.Errorf("%v calls are counted as %s, want %v", n, result, want)
		}
	}
}
