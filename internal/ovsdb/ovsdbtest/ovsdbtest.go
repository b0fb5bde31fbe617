// Package ovsdbtest runs the database server and the switch of Open vSwitch for
// tests (scripts/need ovs). The switch has no datapath in the kernel, and accepts
// interfaces that do not exist.
package ovsdbtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Start returns the socket of the database, and starts the switch when called. Both
// end with the test.
func Start(t testing.TB) (socket string, startSwitch func()) {
	t.Helper()
	dir := testkit.Value(os.MkdirTemp("", "ovs"))(t) // t.TempDir is too long for sockets
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	database, socket := filepath.Join(dir, "conf.db"), filepath.Join(dir, "db.sock")
	run := func(name string, args ...string) *testkit.Process {
		cmd := exec.Command(name, args...)
		cmd.Env = append(os.Environ(), "OVS_RUNDIR="+dir, "OVS_LOGDIR="+dir, "OVS_DBDIR="+dir)
		return testkit.Start(t, cmd)
	}
	testkit.Run(t, "ovsdb-tool", "create", database, "/usr/share/openvswitch/vswitch.ovsschema")
	server := run("/usr/sbin/ovsdb-server", database, "--remote=punix:"+socket, "--unixctl="+filepath.Join(dir, "server.ctl"))
	testkit.Must(t, server.Until(func() error { return testkit.Err(os.Stat(socket)) }))
	testkit.Run(t, "ovs-vsctl", "--db=unix:"+socket, "--no-wait", "init")
	return socket, func() {
		t.Helper()
		run("/usr/sbin/ovs-vswitchd", "unix:"+socket, "--enable-dummy=override", "--disable-system", "--unixctl="+filepath.Join(dir, "switch.ctl"))
	}
}
