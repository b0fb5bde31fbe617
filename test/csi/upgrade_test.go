package csi_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/internal/linux/mount"
	crash "github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// release is a program under test and its source.
type release struct{ name, source, program string }

// releases returns the release of this tree and the one before.
func releases(t *testing.T) (current, previous release) {
	t.Helper()
	source, program := features.BuildPrevious(t)
	return release{"current", testkit.Root(t), cleat}, release{"previous", source, program}
}

// TestUpgrade starts the driver of this tree on the state of the previous
// release, and vice versa.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	current, previous := releases(t)
	for _, order := range [][2]release{{previous, current}, {current, previous}} {
		t.Run("volumes in use, "+order[0].name+" first", func(t *testing.T) {
			t.Parallel()
			testTakeover(t, order[0], order[1])
		})
		t.Run("interrupted calls of "+order[0].name, func(t *testing.T) {
			t.Parallel()
			testInterrupted(t, order[0], order[1])
		})
	}
}

// testTakeover switches from the first release to the second and back. Volumes
// of every kind are taken over unchanged, and their users do not notice.
func testTakeover(t *testing.T, first, second release) {
	dir := t.TempDir()
	r := makeRig(t, "csi", dir, slices.Concat(reflinkPool, addonsFlags(dir))...)
	r.program = first.program
	r.start()
	var kept []*disk
	var workloads []*workload
	for _, c := range []*csi.VolumeCapability{mounted("ext4"), block()} {
		d := r.create(fmt.Sprint("kept-", len(kept)), c).attach()
		kept, workloads = append(kept, d), append(workloads, d.work())
	}
	for name, to := range []struct {
		release
		end func()
	}{{second, r.stop}, {first, r.kill}} {
		f := r.newFleet(fmt.Sprint("fleet-", name))
		before := r.inKernel()
		to.end()
		r.program = to.program
		r.start()
		r.unchanged(before)
		for _, d := range kept {
			testkit.Must(r, d.stage(), d.publish())
			d.healthy()
		}
		f.takenOver()
		r.unchanged(before)
		f.exercise()
		f.drop()
	}
	for i, w := range workloads {
		w.end(r)
		kept[i].drop()
	}
}

// inKernel is the kernel state of a rig.
type inKernel struct {
	Mounts []mount.Entry // with their mount ids
	Others []string      // loop devices among them
}

func (r *rig) inKernel() inKernel {
	r.Helper()
	table := testkit.Value(mount.Table(r.Context()))(r)
	table = slices.DeleteFunc(table, func(e mount.Entry) bool { return !strings.HasPrefix(e.Target, r.dir+"/") })
	return inKernel{table, driver.Left(r.Context(), r.dir)}
}

// unchanged checks that the kernel state is the same, with the same ids.
func (r *rig) unchanged(before inKernel) {
	r.Helper()
	testkit.Diff(r, "mounts and loop devices", before, r.inKernel())
}

// fleet is a volume of each kind, in each state that a switch can find.
type fleet struct {
	*rig
	name                  string
	ext4, raw, shared     *disk
	attached              []*disk // staged and published, with content; includes those above
	second                []*disk // further publishes of raw and, read-only, of shared
	staged, created       *disk   // created: not staged; staged: not published
	clone                 *disk   // of ext4; not staged
	inline                *disk
	snapshot              string // of ext4
	byCommand, commandsAt string // a volume of cleat volume, and where it is attached
	fenced                string
}

const fileSize = 64 << 10

func (r *rig) newFleet(name string) *fleet {
	r.Helper()
	f := &fleet{rig: r, name: name, byCommand: name + "-command", commandsAt: filepath.Join(r.dir, name), fenced: "198.51.100.0/24"}
	for _, c := range []*csi.VolumeCapability{mounted("ext4"), withMode(block(), multiWriter), withMode(mounted("ext4"), multiWriter), mounted("xfs"), mounted("btrfs")} {
		d := r.create(fmt.Sprint(name, "-", len(f.attached)), c).attach()
		testkit.Must(r, writeAt(d.somewhere(), os.O_CREATE, 0, noise(1, fileSize)))
		f.attached = append(f.attached, d)
	}
	f.ext4, f.raw, f.shared = f.attached[0], f.attached[1], f.attached[2]
	f.second = []*disk{f.raw.another("second"), f.shared.another("reader")}
	f.second[1].readOnly = true
	testkit.Must(r, f.second[0].publish(), f.second[1].publish())
	f.staged, f.created = r.create(name+"-staged", mounted("ext4")), r.create(name+"-created", block())
	testkit.Must(r, f.staged.stage())
	f.snapshot = f.ext4.snapshot(name).GetSnapshotId()
	f.clone = r.create(name+"-clone", mounted("ext4"), sourced(fromVolume(f.ext4.id), f.ext4.size))
	f.inline = r.disk(&csi.Volume{VolumeId: "csi-" + name, VolumeContext: map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}}, name+"-inline", mounted("ext4"))
	f.inline.staging = ""
	testkit.Must(r, f.inline.publish())
	f.inline.writeFile("somewhere", 1, fileSize)
	f.command("volume", "create", f.byCommand, "--size", "16MiB")
	f.command("volume", "attach", f.byCommand, f.commandsAt)
	testkit.Must(r, r.addonsOf(r.dir).fence(r.Context(), f.fenced))
	return f
}

// another is the same volume with another target.
func (d *disk) another(name string) *disk {
	other := *d
	other.target += "-" + name
	return &other
}

// command runs the CLI of the release whose driver runs.
func (f *fleet) command(args ...string) string {
	f.Helper()
	return testkit.Run(f, f.program, append(args, "--endpoint", "unix://"+f.process.Socket, "--state-dir", filepath.Join(f.dir, "client"))...)
}

func (d *disk) holdsWritten() {
	d.Helper()
	got := make([]byte, fileSize)
	file := testkit.Value(os.Open(d.somewhere()))(d)
	defer file.Close()
	if testkit.Value(file.ReadAt(got, 0))(d); !bytes.Equal(got, noise(1, fileSize)) {
		d.Errorf("%s does not hold what was written", d.name)
	}
}

// takenOver checks that the fleet is known unchanged. Repeated calls change
// nothing.
func (f *fleet) takenOver() {
	var listed []string
	for _, e := range testkit.Value(f.controller().ListVolumes(f.Context(), &csi.ListVolumesRequest{}))(f).GetEntries() {
		listed = append(listed, e.GetVolume().GetVolumeId())
	}
	for _, d := range slices.Concat(f.attached, []*disk{f.staged, f.created, f.clone}) {
		if !slices.Contains(listed, d.id) {
			f.Errorf("volume %s is not listed", d.name)
		}
		d.healthy()
	}
	snapshots := testkit.Value(f.controller().ListSnapshots(f.Context(), &csi.ListSnapshotsRequest{SourceVolumeId: f.ext4.id}))(f)
	if e := snapshots.GetEntries(); len(e) != 1 || e[0].GetSnapshot().GetSnapshotId() != f.snapshot || !e[0].GetSnapshot().GetReadyToUse() {
		f.Errorf("snapshots: %v", e)
	}
	for _, d := range f.attached {
		testkit.Must(f, d.stage(), d.publish())
		d.hasStats(d.capability.GetBlock() == nil)
		d.holdsWritten()
	}
	testkit.Must(f, f.second[0].publish(), f.second[1].publish(), f.staged.stage(), f.inline.publish())
	f.inline.holdsWritten()
	if out := f.command("volume", "show", f.byCommand); !strings.Contains(out, f.commandsAt) {
		f.Errorf("the client does not know of its attachment: %s", out)
	}
	if got := f.addonsOf(f.dir).list(); !slices.Contains(got, f.fenced) {
		f.Errorf("fenced: %v, want %s among them", got, f.fenced)
	}
}

// exercise makes all calls on the fleet.
func (f *fleet) exercise() {
	testkit.Must(f, f.staged.publish())
	f.created.attach()
	f.created.writeBlock(0, 1, fileSize)
	third := f.shared.another("third")
	testkit.Must(f, third.publish())
	third.holdsWritten()
	third.released(third.unpublish)
	after := f.ext4.snapshot(f.name + "-after").GetSnapshotId()
	f.clone.attach().holdsWritten()
	for _, id := range []string{f.snapshot, after} {
		restored := f.create(f.name+"-restored", mounted("ext4"), sourced(fromSnapshot(id), f.ext4.size)).attach()
		restored.holdsWritten()
		restored.drop()
	}
	f.dropSnapshots(after)
	for _, d := range f.attached {
		d.growsTo(d.size + 16*mib)
		testkit.Must(f, writeAt(d.somewhere(), 0, fileSize, noise(2, fileSize)))
		d.holdsWritten()
	}
}

// drop unpublishes, unstages and deletes the fleet.
func (f *fleet) drop() {
	f.command("volume", "detach", f.byCommand)
	f.command("volume", "delete", f.byCommand)
	testkit.Must(f, f.addonsOf(f.dir).unfence(f.Context(), f.fenced))
	testkit.Must(f, f.second[0].unpublish(), f.second[1].unpublish())
	f.inline.released(f.inline.unpublish)
	for _, d := range slices.Concat(f.attached, []*disk{f.staged, f.created, f.clone}) {
		d.drop()
	}
	f.dropSnapshots(f.snapshot)
}

// testInterrupted kills the first release between any two steps of node calls.
// The second one starts on the remains, and completes the calls or rolls them
// back. In CI every other call is repeated.
func testInterrupted(t *testing.T, first, second release) {
	var points []string
	for _, p := range testkit.Value(crash.Points(first.source))(t) {
		if call, _, _ := strings.Cut(p, "."); slices.Contains([]string{"stage", "publish", "unpublish", "unstage"}, call) {
			points = append(points, p)
		}
	}
	r := makeRig(t, "csi", t.TempDir())
	r.program = first.program
	r.start()
	fs, raw := r.create("fs", mounted("ext4")), r.create("raw", block())
	raw.readOnly = true
	inline := r.disk(&csi.Volume{VolumeId: "csi-inline", VolumeContext: map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"}}, "inline", mounted("ext4"))
	inline.staging = ""
	all := []*disk{fs, raw, inline}
	r.stop()
	for i, point := range points {
		repeats := []bool{false, true}
		if !soak.Enabled {
			repeats = repeats[i%2:][:1]
		}
		for _, repeat := range repeats {
			r.program = first.program
			r.start("CLEAT_CRASHPOINT=" + point + "=1")
			if !r.diesInUse(all) {
				t.Errorf("no call reached %s", point)
			}
			r.kill()
			r.program = second.program
			r.start()
			for _, d := range all {
				if repeat {
					testkit.Must(r, d.use())
				}
				testkit.Must(r, d.endUse())
			}
			if left, files := r.left(), testkit.Value(os.ReadDir(filepath.Join(r.pool, "volumes")))(r); len(left) > 0 || len(files) != 2 {
				t.Errorf("killed at %s, repeat %v: left over %q, and %d volumes", point, repeat, left, len(files))
			}
			r.stop()
		}
	}
	r.start()
	testkit.Must(r, fs.remove(), raw.remove())
}

// use stages and publishes; an inline volume has no stage.
func (d *disk) use() error {
	if d.staging != "" {
		if err := d.stage(); err != nil {
			return err
		}
	}
	return d.publish()
}

// endUse undoes use; it is idempotent.
func (d *disk) endUse() error {
	err := d.unpublish()
	if err == nil && d.staging != "" {
		err = d.unstage()
	}
	return err
}

// diesInUse uses volumes until the driver dies during a call.
func (r *rig) diesInUse(disks []*disk) bool {
	r.Helper()
	for _, d := range disks {
		if err := errors.Join(d.use(), d.endUse()); err != nil {
			testkit.Receive(r, fmt.Sprintf("the end of the driver after %v", err), r.process.Done())
			return true
		}
	}
	return false
}
