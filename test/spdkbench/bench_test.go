package spdkbench

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// requestTime is how long SPDK needs for a request: it looks for them every 4 ms,
// and a busy one has needed 12 ms.
const requestTime = 12 * time.Millisecond

// BenchmarkSPDK measures calls of the controller with 10 and 1,000 published
// volumes on a target, alternating with the least requests that do the same. It
// prints medians in milliseconds, and the requests and the transactions of a call.
// The double answers at once, but for those of delayed.
func BenchmarkSPDK(b *testing.B) {
	s := newSite(b)
	for _, want := range []int{10, 1000} {
		s.fill(want)
		b.Run(fmt.Sprintf("present=%d", want), s.calls)
		if want == 10 {
			s.target.Inject(spdktest.Fault{Wait: requestTime})
			b.Run("delayed", s.calls)
			s.target.Clear()
		}
	}
}

// step is a part of the life of a volume, and the same for a bare client.
type step struct {
	name        string
	cleat, bare func()
}

// calls measures the life of a volume and its copies.
func (s *site) calls(b *testing.B) {
	var v, restored *spec.Volume
	var snap *spec.Snapshot
	var lvol, bareSnap, bareClone string
	const node = "host@192.0.2.99"
	const host = "nqn.2014-08.org.nvmexpress:uuid:8c5f4a1e-0001-4000-8000-000000000001"
	ctx := b.Context()
	steps := []step{
		{"CreateVolume", func() { v = s.create(nil) }, func() { lvol = s.bareCreate() }},
		{"ControllerPublish", func() { s.publish(v, node) }, func() { testkit.Must(b, s.bare.AddHost(ctx, nqn(lvol), host, spdk.HostKeys{})) }},
		{"ControllerExpand", func() { s.expand(v, 2*size) }, func() { testkit.Must(b, s.bare.ResizeLvol(ctx, lvol, 2*size/mib)) }},
		{"CreateSnapshot", func() { snap = s.snapshot(v) }, func() { bareSnap = testkit.Value(s.bare.SnapshotLvol(ctx, lvol, s.name()))(b) }},
		{"restore", func() { restored = s.create(fromSnapshot(snap)) }, func() {
			bareClone = testkit.Value(s.bare.CloneLvol(ctx, bareSnap, s.name()))(b)
			s.bareExport(bareClone)
		}},
		{"", func() { s.remove(restored) }, func() { s.bareDelete(bareClone) }},
		{"DeleteSnapshot", func() { s.deleteSnapshot(snap) }, func() { testkit.Must(b, s.bare.DeleteLvol(ctx, bareSnap)) }},
		{"GetCapacity", s.capacity, func() { testkit.Value(s.bare.LvolStores(ctx))(b) }},
		{"ListVolumes", s.list, nil},
		{"ControllerUnpublish", func() { s.unpublish(v, node) }, func() { testkit.Must(b, s.bare.RemoveHost(ctx, nqn(lvol), host)) }},
		{"DeleteVolume", func() { s.remove(v) }, func() { s.bareDelete(lvol) }},
	}
	all := make([]times, len(steps))
	b.Run("calls", func(b *testing.B) {
		for b.Loop() {
			for i, step := range steps {
				s.forget()
				all[i].Cleat(step.cleat)
				all[i].counts = s.counts()
				if step.bare != nil {
					all[i].Bare(step.bare)
				}
			}
		}
		b.ReportMetric(0, "ns/op") // of all together it means nothing
	})
	for i, step := range steps {
		if step.name != "" {
			b.Run(step.name, all[i].report)
		}
	}
	b.Run("comparison", s.comparison)
}

// counts are of one call.
type counts struct{ requests, views, updates int }

// counts returns what there was since the last forget.
func (s *site) counts() counts {
	c := counts{views: int(s.database.views.Load()), updates: int(s.database.updates.Load())}
	for _, n := range s.target.Counts() {
		c.requests += n
	}
	return c
}

// comparison measures Engine.Run, whose passes follow each other without a pause
// here.
func (s *site) comparison(b *testing.B) {
	const list, passes = "nvmf_get_subsystems", 30
	var t times
	stop := testkit.Go(b, s.engine(1).Run)
	await := func(n int) {
		for end := time.Now().Add(time.Minute); s.target.Counts()[list] < n; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				b.Fatalf("Run has not listed the subsystems %d times", n)
			}
		}
	}
	await(3) // the first pass also looks for interrupted calls
	for range passes / 10 {
		s.forget()
		await(1)
		began := time.Now()
		await(11)
		t.OfCleat = append(t.OfCleat, time.Since(began)/10)
		c, lists := s.counts(), s.target.Counts()[list]
		t.counts = counts{c.requests / lists, c.views / lists, c.updates / lists}
	}
	stop()
	for range passes {
		t.Bare(func() { testkit.Value(s.bare.Subsystems(context.Background()))(b) })
	}
	var response json.RawMessage
	testkit.Must(b, s.bare.Call(context.Background(), list, nil, &response))
	t.report(b)
	b.ReportMetric(float64(len(response))/1024, "KiB-response")
}

func nqn(lvol string) string { return "nqn.2020-04.io.spdk.csi:uuid:" + lvol }

func fromSnapshot(s *spec.Snapshot) *spec.VolumeContentSource {
	return &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Snapshot{Snapshot: &spec.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshotId()}}}
}

func (s *site) bareCreate() (lvol string) {
	s.Helper()
	lvol = testkit.Value(s.bare.CreateLvol(s.Context(), spdk.LvolCreate{StoreUUID: s.storeUUID, Name: s.name(), SizeMiB: size / mib, Thin: true, ClearMethod: "unmap"}))(s)
	s.bareExport(lvol)
	return lvol
}

func (s *site) bareExport(lvol string) {
	s.Helper()
	ctx := s.Context()
	testkit.Must(s,
		s.bare.CreateSubsystem(ctx, spdk.SubsystemCreate{NQN: nqn(lvol), Serial: "bare", Model: lvol, MaxNamespaces: 1}),
		s.bare.AddNamespace(ctx, nqn(lvol), spdk.SubsystemDisk{ID: 1, Bdev: lvol, UUID: lvol, NGUID: strings.ToUpper(strings.ReplaceAll(lvol, "-", ""))}),
		s.bare.AddListener(ctx, nqn(lvol), spdk.Listener{NVMeAddress: spdk.NVMeAddress{Transport: "TCP", Family: "IPv4", Address: targetIP, Service: "4420"}}))
}

func (s *site) bareDelete(lvol string) {
	s.Helper()
	testkit.Must(s, s.bare.DeleteSubsystem(s.Context(), nqn(lvol)), s.bare.DeleteLvol(s.Context(), lvol))
}

// times are of calls of the controller and of the bare client.
type times struct {
	testkit.Times
	counts // of the last call
}

func (t *times) report(b *testing.B) {
	b.ReportMetric(float64(t.requests), "requests")
	b.ReportMetric(float64(t.views), "views")
	b.ReportMetric(float64(t.updates), "updates")
	t.Report(b)
}
