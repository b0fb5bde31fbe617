package csi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	stormClients = 64
	stormTime    = 3 * time.Second
	stormMost    = 3 * time.Minute // where calls are slow and few are made
	answerWithin = 2 * time.Minute
)

// pausedTooLong is in the error of a snapshot that took longer on a busy machine than
// writes are paused at most.
const pausedTooLong = "writes were paused for the maximum"

// storm is 64 clients that use the same few volumes without coordination, and
// some clients with volumes of their own.
type storm struct {
	*rig
	mu        sync.Mutex
	volumes   map[string]*csi.Volume // by name, as last answered
	snapshots map[string]string      // id by name
	groups    map[string]*csi.VolumeGroupSnapshot
	answers   map[string]map[codes.Code]int
	latest    time.Time
}

// TestStorm: under overlapping calls every call is answered in time with an
// allowed code, nothing is created twice, and everything can be deleted
// afterwards.
func TestStorm(t *testing.T) {
	r := newRig(t, append(slices.Clone(reflinkPool), "--log-level", "info")...)
	s := &storm{rig: r, volumes: map[string]*csi.Volume{}, snapshots: map[string]string{},
		groups: map[string]*csi.VolumeGroupSnapshot{}, answers: map[string]map[codes.Code]int{}, latest: time.Now().Add(stormMost)}
	r.sub(t, "one name", sameName)
	ctx, cancel := context.WithTimeout(t.Context(), stormTime)
	defer cancel()
	var all sync.WaitGroup
	for i := range stormClients {
		all.Go(func() {
			c := s.client(i)
			for s.goesOn(ctx) {
				c.step()
			}
		})
	}
	for i := range 4 {
		all.Go(func() { s.bystander(ctx, i) })
	}
	all.Wait()
	for _, call := range slices.Sorted(maps.Keys(s.answers)) {
		t.Logf("%-28s %v", call, s.answers[call])
		if s.answers[call][codes.OK] == 0 {
			t.Errorf("%s never succeeded", call)
		}
	}
	s.takeDown()
}

// goesOn returns true until ctx ends and every kind of call that was tried has
// succeeded.
func (s *storm) goesOn(ctx context.Context) bool {
	if s.Failed() || time.Now().After(s.latest) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, answers := range s.answers {
		if answers[codes.OK] == 0 {
			return true
		}
	}
	return ctx.Err() == nil
}

// sameName: concurrent creates of one name return one volume.
func sameName(r *rig) {
	ids := make([]string, stormClients)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			answer, err := r.controller().CreateVolume(r.Context(), ask("same", mounted("ext4")))
			if err != nil {
				r.Error(err)
			}
			ids[i] = answer.GetVolume().GetVolumeId()
		})
	}
	all.Wait()
	if slices.Sort(ids); ids[0] == "" || ids[0] != ids[len(ids)-1] {
		r.Errorf("one name, several volumes: %v", slices.Compact(ids))
	}
	d := r.disk(&csi.Volume{VolumeId: ids[0]}, "same", mounted("ext4"))
	for range stormClients {
		all.Go(func() {
			if err := d.remove(); err != nil {
				r.Error(err)
			}
		})
	}
	all.Wait()
}

// client is one of the 64, with its own connection.
type client struct {
	*storm
	rand *rand.Rand
	conn *grpc.ClientConn
}

func (s *storm) client(number int) *client {
	conn, err := grpc.NewClient("unix://"+s.process.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.Error(err)
	}
	s.Cleanup(func() { conn.Close() })
	return &client{storm: s, rand: rand.New(rand.NewPCG(uint64(number), 64)), conn: conn}
}

// call makes one call. It must return in time with OK or one of the codes;
// ABORTED must name an object of this call.
func (c *client) call(what string, objects []string, fits []codes.Code, do func(ctx context.Context) error) bool {
	ctx, cancel := context.WithTimeout(c.Context(), answerWithin)
	defer cancel()
	err := do(ctx)
	code := status.Code(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers[what] == nil {
		c.answers[what] = map[codes.Code]int{}
	}
	c.answers[what][code]++
	switch {
	case code == codes.OK:
		return true
	case code == codes.Aborted:
		if !slices.ContainsFunc(objects, func(o string) bool { return strings.Contains(err.Error(), o) }) {
			c.Errorf("%s of %q was aborted because of another object: %v", what, objects, err)
		}
	case !slices.Contains(fits, code) && !strings.Contains(err.Error(), pausedTooLong):
		c.Errorf("%s of %q returned %v", what, objects, err)
	}
	return false
}

// step makes one call on the shared volumes.
func (c *client) step() {
	name := fmt.Sprint("shared-", c.rand.IntN(5))
	c.mu.Lock()
	v := c.volumes[name]
	c.mu.Unlock()
	if v == nil || c.rand.IntN(8) == 0 {
		c.create(name)
		return
	}
	d := &disk{rig: c.rig, id: v.GetVolumeId(), name: name, capability: stormCapability(name), context: v.GetVolumeContext()}
	home := fmt.Sprint(c.dir, "/storm/", name)
	d.staging, d.target = home+"/staging", fmt.Sprint(home, "/target-", c.rand.IntN(2))
	if err := os.MkdirAll(d.staging, 0o750); err != nil {
		c.Error(err)
	}
	switch n := c.rand.IntN(16); n {
	case 0:
		c.remove(d)
	case 1, 2, 3:
		c.stage(d)
	case 4, 5, 6:
		c.publish(d)
	case 7, 8:
		c.unpublish(d)
	case 9, 10:
		c.unstage(d)
	case 11, 12:
		c.snapshot(d)
	case 13:
		c.group(d)
	default:
		c.look(d, n)
	}
}

func stormCapability(name string) *csi.VolumeCapability {
	if name <= "shared-2" {
		return withMode(block(), multiWriter)
	}
	return withMode(mounted("ext4"), multiWriter)
}

// bystander uses its own volume; no other client is allowed to disturb it.
func (s *storm) bystander(ctx context.Context, number int) {
	name := fmt.Sprint("own-", number)
	r := *s.rig
	for ctx.Err() == nil && !s.Failed() {
		answer, err := r.controller().CreateVolume(r.Context(), ask(name, block()))
		if err != nil {
			s.Errorf("%s: %v", name, err)
			return
		}
		d := &disk{rig: &r, id: answer.GetVolume().GetVolumeId(), name: name, capability: block(), context: answer.GetVolume().GetVolumeContext()}
		d.staging, d.target = s.dir+"/"+name+"-staging", s.dir+"/"+name+"-target"
		_ = os.Mkdir(d.staging, 0o750)
		for _, step := range []func() error{d.stage, d.publish, d.unpublish, d.unstage, d.remove} {
			if err := step(); err != nil {
				s.Errorf("%s, which no other client uses: %v", name, err)
				return
			}
		}
	}
}

// takeDown deletes everything by its listed ids, and checks that the pool is
// empty.
func (s *storm) takeDown() {
	for name := range s.volumes {
		home := fmt.Sprint(s.dir, "/storm/", name)
		for _, e := range s.listed() {
			d := &disk{rig: s.rig, id: e.GetVolume().GetVolumeId(), staging: home + "/staging"}
			for i := range 2 {
				d.target = fmt.Sprint(home, "/target-", i)
				testkit.Must(s, d.unpublish())
			}
			testkit.Must(s, d.unstage())
		}
	}
	var errs []error
	if n := len(s.listed()); n > 5+15 {
		s.Errorf("%d volumes exist, more than names", n)
	}
	for _, e := range s.listed() {
		errs = append(errs, (&disk{rig: s.rig, id: e.GetVolume().GetVolumeId()}).remove())
	}
	answer, err := s.controller().ListSnapshots(s.Context(), &csi.ListSnapshotsRequest{})
	testkit.Must(s, errors.Join(append(errs, err)...))
	groups := map[string][]string{}
	for _, e := range answer.GetEntries() {
		if g := e.GetSnapshot().GetGroupSnapshotId(); g != "" {
			groups[g] = append(groups[g], e.GetSnapshot().GetSnapshotId())
			continue
		}
		s.dropSnapshots(e.GetSnapshot().GetSnapshotId())
	}
	for id, members := range groups {
		testkit.Value(s.rig.groups().DeleteVolumeGroupSnapshot(s.Context(), &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: id, SnapshotIds: members}))(s)
	}
	for _, dir := range []string{"volumes", "snapshots", "incoming"} {
		files, err := os.ReadDir(s.pool + "/" + dir)
		if err != nil || len(files) > 0 {
			s.Errorf("left over in the pool's %s: %v, %v", dir, files, err)
		}
	}
}

func (s *storm) listed() []*csi.ListVolumesResponse_Entry {
	s.Helper()
	answer := testkit.Value(s.controller().ListVolumes(s.Context(), &csi.ListVolumesRequest{}))(s)
	return answer.GetEntries()
}

// TestSnapshotWhileUnmounting: a volume that is unmounted just before the
// freeze is no reason to refuse a snapshot.
func TestSnapshotWhileUnmounting(t *testing.T) {
	t.Parallel()
	r := newRigOn(t, mkfs.Btrfs)
	var disks []*disk
	q := &csi.CreateVolumeGroupSnapshotRequest{}
	for i := range 3 {
		d := r.create(fmt.Sprint("moving-", i), mounted("ext4"))
		disks, q.SourceVolumeIds = append(disks, d), append(q.SourceVolumeIds, d.id)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, d := range disks {
		all.Go(func() {
			for ctx.Err() == nil && !t.Failed() {
				for _, call := range []func() error{d.stage, d.unstage} {
					// A call that waited for a snapshot too long is repeated.
					if err := call(); err != nil && status.Code(err) != codes.Aborted {
						t.Error(err)
					}
				}
			}
		})
	}
	taken := 0
	for ; ctx.Err() == nil && !t.Failed(); taken++ {
		q.Name = fmt.Sprint("snapshot-", taken)
		answer, err := r.groups().CreateVolumeGroupSnapshot(t.Context(), q)
		if status.Code(err) == codes.Aborted || err != nil && strings.Contains(err.Error(), pausedTooLong) {
			continue
		}
		if err != nil {
			t.Errorf("snapshot %d: %v", taken, err)
			break
		}
		r.dropGroup(answer.GetGroupSnapshot())
	}
	all.Wait()
	t.Logf("%d group snapshots of 3 volumes during stage and unstage", taken)
	for _, d := range disks {
		testkit.Must(r, d.unstage(), d.remove())
	}
}
