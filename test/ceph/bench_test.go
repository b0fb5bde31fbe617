//go:build ceph

package ceph

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
)

// BenchmarkCeph measures calls of the controller over its socket with 10 and
// 1,000 volumes, alternating with the calls of librbd that do the same without
// cleat. It prints medians in milliseconds.
func BenchmarkCeph(b *testing.B) {
	p := newPair(b)
	present := 0
	for _, want := range []int{10, 1000} {
		p.fill(present, want)
		present = want
		b.Run(fmt.Sprintf("present=%d", want), p.calls)
	}
}

// pair is a controller and a client of librbd with the same pool.
type pair struct {
	*rig
	controller spec.ControllerClient
	io         *rados.IOContext
	options    *rbd.ImageOptions // those of the controller's images
	cloning    *rbd.ImageOptions // and of its clones
	serial     int
}

// rest is how long the controller is left idle after it deleted something: it
// looks for what the deletion has made superfluous after its answer.
const rest = 50 * time.Millisecond

func newPair(b *testing.B) *pair {
	r := newRig(b)
	p := &pair{rig: r, controller: spec.NewControllerClient(r.controller("one").Conn), options: imageOptions(b), cloning: imageOptions(b)}
	testkit.Must(b, p.cloning.SetUint64(rbd.ImageOptionCloneFormat, 2))
	client := testkit.Value(rados.NewConn())(b)
	testkit.Must(b, client.ReadConfigFile(shared.Conf()), client.SetConfigOption("rbd_cache", "false"), client.Connect())
	p.io = testkit.Value(client.OpenIOContext(r.pool))(b)
	b.Cleanup(func() {
		p.io.Destroy()
		client.Shutdown()
	})
	return p
}

func imageOptions(b *testing.B) *rbd.ImageOptions {
	o := rbd.NewRbdImageOptions()
	b.Cleanup(o.Destroy)
	testkit.Must(b,
		o.SetUint64(rbd.ImageOptionFeatures, uint64(rbd.FeatureSetFromNames([]string{"layering", "deep-flatten"}))),
		o.SetUint64(rbd.ImageOptionOrder, 22))
	return o
}

// fill creates the volumes numbered from up to, but not including, to.
func (p *pair) fill(from, to int) {
	p.Helper()
	began := time.Now()
	numbers, failed := make(chan int), make(chan error, 1)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for n := range numbers {
				if _, err := p.controller.CreateVolume(p.Context(), create(fmt.Sprintf("present-%d", n), 16*mib)); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	for n := from; n < to; n++ {
		numbers <- n
	}
	close(numbers)
	callers.Wait()
	select {
	case err := <-failed:
		p.Fatal(err)
	default:
	}
	fmt.Printf("8 callers created %d volumes in %s\n", to-from, time.Since(began).Round(100*time.Millisecond))
}

func (p *pair) calls(b *testing.B) {
	source := p.volume(b, nil)
	bare := p.name()
	testkit.Must(b, rbd.CreateImage(p.io, bare, 16*mib, p.options))
	b.Run("create", p.create)
	b.Run("delete", p.delete)
	b.Run("snapshot", func(b *testing.B) { p.snapshot(b, source.GetVolumeId(), bare) })
	b.Run("clone", func(b *testing.B) { p.clone(b, source.GetVolumeId(), bare) })
	p.remove(b, source.GetVolumeId())
	testkit.Must(b, rbd.RemoveImage(p.io, bare))
}

func (p *pair) create(b *testing.B) {
	var t testkit.Times
	for b.Loop() {
		var v *spec.Volume
		t.Cleat(func() { v = p.volume(b, nil) })
		p.remove(b, v.GetVolumeId())
		image := p.name()
		t.Bare(func() { testkit.Must(b, rbd.CreateImage(p.io, image, 16*mib, p.options)) })
		testkit.Must(b, rbd.RemoveImage(p.io, image))
	}
	t.Report(b)
}

// delete compares with a rename, which is what the controller's answer waits
// for, and a removal, which it does afterwards. rename is the first of both.
func (p *pair) delete(b *testing.B) {
	var t testkit.Times
	var renames []time.Duration
	for b.Loop() {
		v := p.volume(b, nil)
		t.Cleat(func() { p.deleteVolume(b, v.GetVolumeId()) })
		p.awaitRemoval(b)
		image := p.name()
		testkit.Must(b, rbd.CreateImage(p.io, image, 16*mib, p.options))
		t.Bare(func() {
			began := time.Now()
			testkit.Must(b, rbd.GetImage(p.io, image).Rename(image+"-deleted"))
			renames = append(renames, time.Since(began))
			testkit.Must(b, rbd.RemoveImage(p.io, image+"-deleted"))
		})
	}
	t.Report(b)
	b.ReportMetric(testkit.Median(renames), "ms-rename")
	b.ReportMetric(testkit.Median(t.OfCleat)/testkit.Median(renames), "ratio-rename")
}

func (p *pair) snapshot(b *testing.B, source, image string) {
	var t testkit.Times
	for b.Loop() {
		var s *spec.CreateSnapshotResponse
		name := p.name()
		t.Cleat(func() {
			s = testkit.Value(p.controller.CreateSnapshot(p.Context(), &spec.CreateSnapshotRequest{Name: name, SourceVolumeId: source}))(b)
		})
		testkit.Value(p.controller.DeleteSnapshot(p.Context(), &spec.DeleteSnapshotRequest{SnapshotId: s.GetSnapshot().GetSnapshotId()}))(b)
		time.Sleep(rest)
		t.Bare(func() {
			p.open(b, image, func(i *rbd.Image) { testkit.Value(i.CreateSnapshot(name))(b) })
		})
		p.open(b, image, func(i *rbd.Image) { testkit.Must(b, i.GetSnapshot(name).Remove()) })
	}
	t.Report(b)
}

// clone compares with a clone of a temporary snapshot, which is removed.
func (p *pair) clone(b *testing.B, source, image string) {
	from := &spec.VolumeContentSource{Type: &spec.VolumeContentSource_Volume{Volume: &spec.VolumeContentSource_VolumeSource{VolumeId: source}}}
	var t testkit.Times
	for b.Loop() {
		var v *spec.Volume
		t.Cleat(func() { v = p.volume(b, from) })
		p.remove(b, v.GetVolumeId())
		name := p.name()
		t.Bare(func() {
			p.open(b, image, func(i *rbd.Image) {
				snap := testkit.Value(i.CreateSnapshot(name))(b)
				testkit.Must(b, rbd.CloneImage(p.io, image, name, p.io, name, p.cloning), snap.Remove())
			})
		})
		testkit.Must(b, rbd.RemoveImage(p.io, name))
	}
	t.Report(b)
}

func (p *pair) name() string {
	p.serial++
	return fmt.Sprintf("bench-%d", p.serial)
}

func (p *pair) volume(b *testing.B, source *spec.VolumeContentSource) *spec.Volume {
	b.Helper()
	req := create(p.name(), 16*mib)
	req.VolumeContentSource = source
	return testkit.Value(p.controller.CreateVolume(p.Context(), req))(b).GetVolume()
}

func (p *pair) deleteVolume(b *testing.B, id string) {
	b.Helper()
	testkit.Value(p.controller.DeleteVolume(p.Context(), &spec.DeleteVolumeRequest{VolumeId: id}))(b)
}

func (p *pair) remove(b *testing.B, id string) {
	b.Helper()
	p.deleteVolume(b, id)
	p.awaitRemoval(b)
}

// awaitRemoval waits until the controller has removed the images of deleted
// volumes, which would make the next measured call slower, and is idle.
func (p *pair) awaitRemoval(b *testing.B) {
	b.Helper()
	isDeleted := func(name string) bool { return strings.HasPrefix(name, "cleat-del-") }
	for end := time.Now().Add(4 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if images := testkit.Value(rbd.GetImageNames(p.io))(b); !slices.ContainsFunc(images, isDeleted) {
			time.Sleep(rest)
			return
		}
		if time.Now().After(end) {
			b.Fatal("the image of a deleted volume is not removed")
		}
	}
}

func (p *pair) open(b *testing.B, image string, change func(*rbd.Image)) {
	b.Helper()
	i := testkit.Value(rbd.OpenImage(p.io, image, rbd.NoSnapshot))(b)
	change(i)
	testkit.Must(b, i.Close())
}
