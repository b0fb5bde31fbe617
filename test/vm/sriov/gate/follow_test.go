package gate

import (
	"fmt"
	"path"
	"strings"
	"syscall"

	"github.com/cleatproject/cleat/sriov/daemon"
	"github.com/cleatproject/cleat/sriov/nodestate"
)

// follows configures the node as the operator's daemon does. Its reported
// status alone must not cause an offer.
func (r *rig) follows() {
	r.Helper()
	r.setDesired(desiredState{uid: "b", generation: 1, network: 2, vfio: 1, mtu: 1600, sync: nodestate.InProgress})
	r.startDaemon(daemon.Follow)
	r.phase(daemon.Pending)
	r.setSyncStatus(nodestate.Succeeded) // wrong
	r.rejectsFalseSuccess()
	r.setSyncStatus(nodestate.InProgress)
	r.operates()
	r.phase(daemon.Pending)
	r.offersNothing("the operator is still in progress")
	r.setSyncStatus(nodestate.Succeeded)
	r.serves()

	// The old generation's status remains until the operator processes the new
	// one.
	r.setDesired(desiredState{uid: "b", generation: 2, network: 2, vfio: 2, mtu: 1600, sync: nodestate.Succeeded})
	r.withdrawn("another generation")
	r.rejectsFalseSuccess()
	r.setSyncStatus(nodestate.InProgress)
	r.operates()
	r.setSyncStatus(nodestate.Succeeded)
	r.serves()
	if steps := r.followed(); steps != "" {
		r.Errorf("a daemon in mode follow executed a step: %s", steps)
	}
	r.endDaemon(syscall.SIGTERM)
	r.withdrawn("the daemon ended")
}

// setSyncStatus sets the operator's sync status.
func (r *rig) setSyncStatus(sync string) {
	r.Helper()
	w := r.desired
	w.sync = sync
	r.setDesired(w)
}

// rejectsFalseSuccess waits until the daemon rejects a wrong status Succeeded.
func (r *rig) rejectsFalseSuccess() {
	r.Helper()
	r.Await("the daemon detects missing changes", func() bool {
		s := r.status()
		return s.Phase == daemon.Pending && s.Generation == r.desired.generation && len(s.Problems) > 0 && !strings.Contains(s.Reason, nodestate.InProgress)
	})
	r.offersNothing("the operator reported success too early")
}

// operates configures the functions as the operator's daemon does.
func (r *rig) operates() {
	r.Helper()
	r.script(r.desired.number(), true)
	r.Run("ip", "link", "set", r.netdev, "mtu", "2000", "up")
	for i := range r.desired.number() {
		address := r.virtual(i)
		if i >= r.desired.network {
			r.Run("modprobe", "vfio-pci")
			r.Write(path.Join(devices, address, "driver/unbind"), address)
			r.Write(path.Join(devices, address, "driver_override"), "vfio-pci")
			r.Write("/sys/bus/pci/drivers_probe", address)
			r.Write(path.Join(devices, address, "driver_override"), "\n")
			continue
		}
		r.Run("ip", "link", "set", r.netdev, "vf", fmt.Sprint(i), "trust", "on", "spoofchk", "off")
		r.Run("ip", "link", "set", r.Names(path.Join(devices, address, "net"))[0], "mtu", fmt.Sprint(r.desired.mtu))
	}
}

// followed returns a log line of the running daemon about an executed step, or
// "".
func (r *rig) followed() string {
	r.Helper()
	for line := range strings.Lines(r.daemon.Log()) {
		if strings.Contains(line, `"step `) {
			return line
		}
	}
	return ""
}
