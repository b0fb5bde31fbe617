package gate

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk"
)

// TestReboots takes a machine down in each state of its functions. A card has no
// virtual functions after that, or those that some script of the boot made: in
// no case is anything offered before the daemon has looked.
func TestReboots(t *testing.T) {
	t.Parallel()
	if without(t) {
		return
	}
	d := testkit.Open(disk.Open(disk.Spec{Path: filepath.Join(t.TempDir(), "machine"), Size: 256 << 20, Survival: disk.SurviveNone}))(t)
	r := &rebooted{rig: boot(t, "sriov-reboots", d), t: t, disk: d}
	r.Run("mkfs.ext4", "-q", "/dev/vda")
	r.mount()
	begun := time.Now()
	r.neverEnabled()
	r.enabled()
	r.halfway()
	r.takenBack()
	fmt.Printf("REPORT: SR-IOV gate: a machine taken down in each state, twice by a power cut, in %.0f s\n", time.Since(begun).Seconds())
}

// rebooted is a machine whose disk outlives its boots.
type rebooted struct {
	*rig
	t          *testing.T
	disk       *disk.Disk
	generation int64 // of the wish in whose steps the power went
}

func (r *rebooted) mount() {
	r.Helper()
	r.Run("mount", "-t", "ext4", "/dev/vda", system)
}

// again boots the machine. Neither plugin nor daemon runs yet.
func (r *rebooted) again() {
	r.Helper()
	testkit.Must(r, r.disk.PowerOn())
	r.start(r.t, "sriov-reboots", r.disk)
	r.mount()
}

func (r *rebooted) shutdown() {
	r.Helper()
	r.check()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	testkit.Must(r, r.Guest.Shutdown(ctx))
}

func (r *rebooted) cut() {
	r.Helper()
	testkit.Must(r, r.Guest.Cut())
}

// neverEnabled: no daemon has ever run.
func (r *rebooted) neverEnabled() {
	r.Helper()
	r.tell(wish{uid: "a", generation: 1, network: 1, vfio: 1, mtu: 1800})
	r.script(2, true)
	r.startPlugin()
	r.silent("no daemon ever ran")
	if !soak.Enabled {
		return
	}
	r.shutdown()
	r.again()
	r.startPlugin()
	r.silent("no daemon ever ran, second boot")
}

// enabled: the power goes while devices are offered.
func (r *rebooted) enabled() {
	r.Helper()
	r.startDaemon(daemon.Apply)
	r.serves()
	r.cut()
	r.again()
	r.script(3, true) // not as wanted, with drivers that the plugin looks for
	r.startPlugin()
	r.silent("devices were offered before the power went")
	r.startDaemon(daemon.Apply)
	r.serves()
}

// halfway: the power goes in the middle of the steps. The daemon is back before
// the plugin is.
func (r *rebooted) halfway() {
	r.Helper()
	for r.generation = 2; ; r.generation += 2 { // a host that has more to do may look too late
		steps := len(r.steps())
		r.tell(wish{uid: "a", generation: r.generation, network: 2, vfio: 1, mtu: 1700})
		r.Await("the daemon is in the middle of its steps", func() bool { return len(r.steps()) > steps+1 })
		if r.status().Phase == daemon.Applying {
			break
		}
		r.serves()
		r.tell(wish{uid: "a", generation: r.generation + 1, network: 1, vfio: 1, mtu: 1800})
		r.serves()
	}
	r.cut()
	r.again()
	r.startDaemon(daemon.Apply)
	r.Await("the daemon knows that it was not done", func() bool { return strings.Contains(r.daemon.Log(), "previous process was interrupted") })
	r.script(3, true) // the number that is wanted, and nothing else
	r.startPlugin()
	r.serves()
}

// takenBack: the machine goes down in order while a pod is in the way.
func (r *rebooted) takenBack() {
	r.Helper()
	r.pod("holder", userspace, r.virtual(2))
	r.tell(wish{uid: "a", generation: r.generation + 1, network: 1, vfio: 3, mtu: 1700})
	r.phase(daemon.Blocked)
	r.withdrawn("a pod is in the way")
	r.shutdown()
	r.again()
	r.startPlugin()
	r.silent("devices were taken back before the machine went down")
	r.startDaemon(daemon.Apply)
	r.serves()
}
