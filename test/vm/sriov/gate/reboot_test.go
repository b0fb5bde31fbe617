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

// TestReboots reboots a guest in each state of its functions. After a boot,
// virtual functions are missing or created by a boot script; no device is
// offered before the daemon has verified them.
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
	r.powerLossDuringSteps()
	r.shutdownWhileBlocked()
	fmt.Printf("REPORT: SR-IOV gate: rebooted in each state, twice by power loss, in %.0f s\n", time.Since(begun).Seconds())
}

// rebooted is a guest whose disk survives reboots.
type rebooted struct {
	*rig
	t          *testing.T
	disk       *disk.Disk
	generation int64 // generation that was being applied at the power loss
}

func (r *rebooted) mount() {
	r.Helper()
	r.Run("mount", "-t", "ext4", "/dev/vda", system)
}

// again boots the guest without plugin and daemon.
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

func (r *rebooted) losePower() {
	r.Helper()
	testkit.Must(r, r.Guest.LosePower())
}

// neverEnabled: no daemon has run before the reboot.
func (r *rebooted) neverEnabled() {
	r.Helper()
	r.setDesired(desiredState{uid: "a", generation: 1, network: 1, vfio: 1, mtu: 1800})
	r.script(2, true)
	r.startPlugin()
	r.offersNothing("no daemon ever ran")
	if !soak.Enabled {
		return
	}
	r.shutdown()
	r.again()
	r.startPlugin()
	r.offersNothing("no daemon ever ran, second boot")
}

// enabled: power is lost while devices are offered.
func (r *rebooted) enabled() {
	r.Helper()
	r.startDaemon(daemon.Apply)
	r.serves()
	r.losePower()
	r.again()
	r.script(3, true) // not the desired number, with drivers that the plugin selects
	r.startPlugin()
	r.offersNothing("devices were offered before the power loss")
	r.startDaemon(daemon.Apply)
	r.serves()
}

// powerLossDuringSteps: power is lost between steps. The daemon starts before the plugin.
func (r *rebooted) powerLossDuringSteps() {
	r.Helper()
	for r.generation = 2; ; r.generation += 2 { // a busy host might poll too late
		steps := len(r.steps())
		r.setDesired(desiredState{uid: "a", generation: r.generation, network: 2, vfio: 1, mtu: 1700})
		r.Await("the daemon is in the middle of its steps", func() bool { return len(r.steps()) > steps+1 })
		if r.status().Phase == daemon.Applying {
			break
		}
		r.serves()
		r.setDesired(desiredState{uid: "a", generation: r.generation + 1, network: 1, vfio: 1, mtu: 1800})
		r.serves()
	}
	r.losePower()
	r.again()
	r.startDaemon(daemon.Apply)
	r.Await("the daemon reports the interruption", func() bool { return strings.Contains(r.daemon.Log(), "previous process was interrupted") })
	r.script(3, true) // only the number is as desired
	r.put(pluginConfig, config)
	r.runPlugin() // the daemon enables it at any time
	r.serves()
}

// shutdownWhileBlocked: the guest is shut down while a pod blocks a change.
func (r *rebooted) shutdownWhileBlocked() {
	r.Helper()
	r.pod("holder", userspace, r.virtual(2))
	r.setDesired(desiredState{uid: "a", generation: r.generation + 1, network: 1, vfio: 3, mtu: 1700})
	r.phase(daemon.Blocked)
	r.withdrawn("a pod blocks the change")
	r.shutdown()
	r.again()
	r.startPlugin()
	r.offersNothing("devices were withdrawn before the shutdown")
	r.startDaemon(daemon.Apply)
	r.serves()
}
