package nodeservice

import (
	"fmt"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// Takeover is a node whose service is another build of cleat after each start, while
// its volumes are in use. The builds have crash points, and the guest has the program
// writer (test/vm/pair/writer).
type Takeover struct {
	*Node
	Busy   *Volume   // has a file system, to which a pod writes throughout
	Others []*Volume // are unstaged and staged again by each build
	Killed *Volume   // is that of the call during which a build is killed; it has a file system
	// Grow expands a volume at its storage, and returns its size.
	Grow func(v *Volume) (size int64)

	seed int // of what the others hold
}

const blocks = 20 // of the writer

// UpgradeAndBack has the first build attach the volumes, continues with the second one,
// and then with the first one again. Each makes all calls, and is killed in one.
func (o *Takeover) UpgradeAndBack(first, second string) {
	o.Helper()
	all := append([]*Volume{o.Busy}, o.Others...)
	o.Program = first
	o.Start(killedAt("stage.attached", len(all)+1))
	for _, v := range all {
		testkit.Must(o, o.Stage(v), o.Publish(v))
	}
	o.fill()
	pod := o.startPod()
	before := o.inKernel()
	o.WantKilled("stage.attached", func() error { return o.Stage(o.Killed) })

	o.Program = second
	o.Start(killedAt("unpublish.unmounted", len(o.Others)+1))
	o.takenOver(before)
	o.exercise()
	testkit.Must(o, o.Stage(o.Killed))
	before = o.inKernel()
	testkit.Must(o, o.Publish(o.Killed))
	pod.writes()
	o.WantKilled("unpublish.unmounted", func() error { return o.Unpublish(o.Killed) })

	o.Program = first
	o.Start()
	o.takenOver(before)
	testkit.Must(o, o.Unpublish(o.Killed), o.Unstage(o.Killed))
	o.exercise()
	pod.writes()
	pod.end()
	for _, v := range all {
		testkit.Must(o, o.Unpublish(v), o.Unstage(v))
	}
	o.Stop()
}

func killedAt(point string, count int) string {
	return fmt.Sprintf("CLEAT_CRASHPOINT=%s=%d", point, count)
}

// inKernel lists mounts with their ids, and devices.
func (o *Takeover) inKernel() []string {
	o.Helper()
	return strings.Split(o.Run("sh", "-c", `grep "$0" /proc/self/mountinfo; ls /sys/class/nvme /sys/bus/rbd/devices 2>/dev/null; true`, System+"/"), "\n")
}

// takenOver checks that volumes are attached as before. Repeated calls change nothing.
func (o *Takeover) takenOver(before []string) {
	o.Helper()
	testkit.Diff(o, "mounts and devices", before, o.inKernel())
	for _, v := range append([]*Volume{o.Busy}, o.Others...) {
		testkit.Must(o, o.Stage(v), o.Publish(v))
		ctx, cancel := o.Call()
		health := testkit.Value(o.Client().NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: v.ID}))(o)
		cancel()
		if found := health.GetVolumeHealth().GetHealthStatuses(); len(found) > 0 {
			o.Errorf("health of %s: %v", v.ID, found)
		}
	}
	o.check()
	testkit.Diff(o, "mounts and devices after repeated calls", before, o.inKernel())
}

// exercise makes the other calls.
func (o *Takeover) exercise() {
	o.Helper()
	for _, v := range append([]*Volume{o.Busy}, o.Others...) {
		before, size := o.total(v), o.Grow(v)
		testkit.Must(o, o.Expand(v, size))
		if now := o.total(v); now <= before {
			o.Errorf("%s has %d bytes in all, before it was expanded to %d it had %d", v.ID, now, size, before)
		}
	}
	for _, v := range o.Others {
		testkit.Must(o, o.Unpublish(v), o.Unstage(v), o.Stage(v), o.Publish(v))
	}
	o.check()
	o.fill()
}

// total returns the size that users see.
func (o *Takeover) total(v *Volume) int64 {
	o.Helper()
	ctx, cancel := o.Call()
	defer cancel()
	usage := testkit.Value(o.Client().NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID, VolumePath: v.Target, StagingTargetPath: v.Staging}))(o).GetUsage()
	for _, u := range usage {
		if u.GetUnit() == csi.VolumeUsage_BYTES {
			return u.GetTotal()
		}
	}
	o.Fatalf("stats of %s without bytes: %v", v.ID, usage)
	return 0
}

// fill writes to the other volumes, check verifies it.
func (o *Takeover) fill() {
	o.Helper()
	o.seed++
	o.writer("-count")
}

func (o *Takeover) check() {
	o.Helper()
	o.writer("-check")
}

func (o *Takeover) writer(mode string) {
	o.Helper()
	for _, v := range o.Others {
		path := v.Target
		if v.Capability.GetBlock() == nil {
			path += "/file"
			o.Run("touch", path)
		}
		o.Run("writer", "-seed", fmt.Sprint(o.seed), mode, fmt.Sprint(blocks), path)
	}
}

// pod appends numbers to a file that it holds open, and syncs each.
type pod struct {
	*Takeover
	process    *vm.Process
	file, stop string
}

func (o *Takeover) startPod() *pod {
	o.Helper()
	p := &pod{Takeover: o, file: o.Busy.Target + "/numbers", stop: "/run/" + o.Busy.ID + "-stop"}
	p.process = testkit.Value(o.Guest.Start(o.Context(), vm.Command{Argv: []string{"sh", "-c", `
		set -e
		exec >> "$0"
		i=0
		until [ -e "$1" ]; do echo $i; sync "$0"; sleep 0.1; i=$((i+1)); done
		echo $i >&2`, p.file, p.stop}}))(o)
	p.writes()
	return p
}

// writes waits for the next write.
func (p *pod) writes() {
	p.Helper()
	size := func() string { return p.Run("sh", "-c", `stat -c %s "$0" 2>/dev/null || echo 0`, p.file) }
	before := size()
	p.Await("the pod writes", func() bool {
		select {
		case <-p.process.Done():
			p.Fatalf("the pod ended: %v\n%s", p.process.Err(), p.process.Log())
		default:
		}
		return size() != before
	})
}

// end ends the pod. What it wrote is in the storage.
func (p *pod) end() {
	p.Helper()
	p.Run("touch", p.stop)
	testkit.Receive(p, "the end of the pod", p.process.Done())
	testkit.Must(p, p.process.Err())
	testkit.Must(p, p.Unpublish(p.Busy), p.Unstage(p.Busy), p.Stage(p.Busy), p.Publish(p.Busy))
	p.Run("sh", "-c", `seq 0 $(($1-1)) | cmp - "$0"`, p.file, strings.TrimSpace(p.process.Log()))
	p.Run("rm", p.stop)
}
