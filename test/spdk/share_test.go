package spdk

import (
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// A DPU and a host share a raw block volume. Each is admitted by its own
// publication, and the fence of one does not disturb the other. Grants and fences
// last over kills of the controller and restarts of the target.
func TestVolumeOfDPUAndHost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.create("pvc-1")
	node := hostName + "@" + hostAddress
	s.admitted(v)
	s.dpuIsRefused(v)

	s.publish(v, dpuName)
	device := s.createDevice(v)
	s.admitted(v, dpuName)
	s.hostIsRefused(v)
	s.killController()
	s.publish(v, dpuName)
	s.publish(v, node)
	host := s.mustConnect(v)
	s.admitted(v, dpuName, hostName)

	s.target.Restart(t)
	s.admitted(v, dpuName, hostName)
	s.dpuConnects()
	if host.Alive() {
		t.Fatal("the host's session outlives the target")
	}
	host = s.mustConnect(v)

	s.fence("add", dpuAddress)
	s.dpuIsFenced(v)
	s.admitted(v, hostName)
	s.killController()
	s.admitted(v, hostName)
	s.dpuIsFenced(v)
	if !host.Alive() {
		t.Error("the fence of the DPU ended the host's session")
	}
	s.target.Restart(t)
	s.admitted(v, hostName)
	s.dpuIsFenced(v)
	host = s.mustConnect(v)
	s.fence("rm", dpuAddress)
	s.admitted(v, dpuName, hostName)
	s.dpuConnects()
	if !host.Alive() {
		t.Error("the end of the fence ended the host's session")
	}

	host.Close()
	s.unpublish(v, node)
	s.hostIsRefused(v)
	s.deleteDevice(device)
	s.unpublish(v, dpuName)
	s.admitted(v)
	s.dpuIsRefused(v)
	s.delete(v)
	s.target.CheckEmpty(t)
}

// A fenced DPU is unpublished and its volume deleted although the DPU never
// deletes the device.
func TestLostDPU(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.create("pvc-1")
	s.publish(v, dpuName)
	s.createDevice(v)
	s.fence("add", dpuAddress)
	s.dpuIsFenced(v)
	s.unpublish(v, dpuName)
	s.delete(v)
	s.target.CheckEmpty(t)
	s.fence("rm", dpuAddress)
	if list := testkit.Run(t, cleat, "fence", "list", "-o", "json", "--endpoint", s.addons()); list != "[]\n" {
		t.Errorf("fences after the last was removed: %s", list)
	}
}
