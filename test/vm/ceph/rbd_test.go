package ceph

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
)

// TestCeph boots two nodes for all tests.
func TestCeph(t *testing.T) {
	r := newRig(t)
	fs := newFSRig(r)
	t.Run("each node", func(t *testing.T) {
		t.Run("0", func(t *testing.T) {
			t.Parallel()
			vm.GoTest(t, r.nodes[0].Guest, "./node/rbd", "-test.run=^TestSuite$", "-site="+sitePath)
			run(t, r, test{"secret", (*rig).testSecret}, test{"errors", (*rig).testErrors}, test{"kills", (*rig).testKills})
			vm.GoTest(t, r.nodes[0].Guest, "./node/cephfs", "-test.run=^TestSuite$", "-site="+fsSite)
		})
		t.Run("1", func(t *testing.T) {
			t.Parallel()
			run(t, r, test{"disconnect", (*rig).testDisconnect}, test{"sanity", (*rig).testSanity}, test{"lost state", (*rig).testLostState})
			run(t, fs, fsTest{"errors", (*fsRig).testErrors}, fsTest{"kills", (*fsRig).testKills}, fsTest{"volume", (*fsRig).testVolume}, fsTest{"snapshot", (*fsRig).testSnapshot})
			if soak.Enabled {
				vm.GoTest(t, r.nodes[1].Guest, "./node/cephfs", "-test.run=^TestSuite$", "-site="+fsSite)
			}
		})
	})
	run(t, r, test{"restarts", (*rig).testRestarts}, test{"takeover", (*rig).testTakeovers})
	if soak.Enabled {
		run(t, r, test{"attach time", (*rig).testAttachTime}, test{"upgrade", (*rig).testUpgrade})
		run(t, fs, fsTest{"upgrade of CephFS", (*fsRig).testUpgrade})
	}
	run(t, fs, fsTest{"dpu", (*fsRig).testDPU}, fsTest{"shared", (*fsRig).testShared}, fsTest{"fence", (*fsRig).testFence},
		fsTest{"takeover", (*fsRig).testTakeover}, fsTest{"server", (*fsRig).testServer})
	for n := range r.nodes {
		r.wantNothing(n)
		fs.wantNothing(n)
	}
	run(t, r, test{"power loss", (*rig).testPowerLoss}) // the last one: its guest ends with it
}

type subtest[R any] struct {
	name string
	run  func(R)
}

type (
	test   = subtest[*rig]
	fsTest = subtest[*fsRig]
)

// run runs subtests of a rig.
func run[R interface{ In(*testing.T) R }](t *testing.T, r R, all ...subtest[R]) {
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			begun := time.Now()
			s.run(r.In(t))
			fmt.Printf("REPORT: %s took %.0f s\n", t.Name(), time.Since(begun).Seconds())
		})
	}
}

// testAttachTime prints what node/rbd adds to a map by the kernel.
func (r *rig) testAttachTime() {
	r.image("timed")
	fmt.Printf("REPORT: rbd: medians in a guest: %s\n", testkit.Value(r.client(0, "compare", "timed"))(r))
}

// testSecret: no file of the kernel and no process shows the key.
func (r *rig) testSecret() {
	r.image("secret")
	device := r.attach(0, "secret")
	k := r.nodes[0]
	config := k.Run("sh", "-c", "cat /sys/bus/rbd/devices/*/config_info")
	if !strings.Contains(config, "key=cleat/rbd.test/") || !strings.Contains(config, "noshare") {
		r.Errorf("config_info: %s", config)
	}
	for _, files := range []string{"/sys/bus/rbd/devices/*/*", "/proc/keys", "/proc/*/cmdline", "/proc/*/environ"} {
		if out, err := k.Try("sh", "-c", `cat `+files+` 2>/dev/null | grep -a -c -F "$0"`, r.site.Key); err == nil {
			r.Errorf("the key is in %s: %s lines", files, out)
		}
	}
	if strings.Contains(k.Run("dmesg"), r.site.Key) {
		r.Error("the key is in the kernel log")
	}
	if keys := k.Read("/proc/keys"); strings.Contains(keys, "cleat/") {
		r.Errorf("the kernel keeps a key in a keyring after the map of %s:\n%s", device, keys)
	}
	r.detach(0, "secret")
}

// testErrors: each mistake has its own error.
func (r *rig) testErrors() {
	wrong := r.site
	wrong.Key = testkit.Value(cluster.User("other", "mon", "allow r"))(r)
	r.describe(0, "/run/wrong.json", wrong)
	noPool := r.site
	noPool.Pool = "missing"
	r.describe(0, "/run/pool.json", noPool)
	closed := r.site
	closed.Monitors = closed.Monitors[:0:0]
	for _, m := range r.site.Monitors {
		closed.Monitors = append(closed.Monitors, addrPort(m.Addr(), 1))
	}
	r.describe(0, "/run/closed.json", closed)
	r.image("errors")
	for _, c := range []struct{ site, image, timeout, kind, words string }{
		{sitePath, "missing", "2m", "not found", "does not exist"},
		{"/run/pool.json", "errors", "2m", "not found", "does not exist"},
		{"/run/wrong.json", "errors", "2m", "unauthenticated", "client.node"},
		{"/run/closed.json", "errors", "5s", "unavailable", "has not answered"},
	} {
		out := r.fails(0, "-site", c.site, "-timeout", c.timeout, "attach", c.image)
		if !strings.HasPrefix(out, c.kind) || !strings.Contains(out, c.words) {
			r.Errorf("attach %s with %s: %s; want %s, %q", c.image, c.site, out, c.kind, c.words)
		}
	}
}

// fails runs the client for a call that fails, and returns its output. The
// process can stay until the kernel answers.
func (r *rig) fails(n int, args ...string) string {
	p := testkit.Value(r.nodes[n].Guest.Start(r.Context(), vm.Command{Argv: append([]string{"rbdclient"}, args...)}))(r)
	r.nodes[n].Await("the client's answer", func() bool { return strings.Contains(p.Log(), "\n") })
	return strings.TrimSpace(p.Log())
}

// testRestarts restarts OSD and monitor while a node writes.
func (r *rig) testRestarts() {
	r.image("restarts")
	device := r.attach(0, "restarts")
	w := r.writer(0, device)
	r.awaitWrites(0, w, 50)
	testkit.Must(r, cluster.StopOSD(), cluster.StartOSD())
	r.awaitWrites(0, w, 50)
	cluster.StopMon()
	r.awaitWrites(0, w, 50)
	testkit.Must(r, cluster.StartMon())
	r.awaitWrites(0, w, 50)
	testkit.Must(r, w.Kill(r.Context()))
	r.check(0, device, 1, acknowledged(w))
	r.detach(0, "restarts")
}

// check verifies what a writer wrote.
func (r *rig) check(n int, device string, seed, count int) {
	r.run(n, "-seed", fmt.Sprint(seed), "-check", fmt.Sprint(count), device)
}

// run runs the writer to its end. Each block is a request to the cluster.
func (r *rig) run(n int, args ...string) {
	const bound = 5 * time.Minute
	w := r.writer(n, args...)
	select {
	case <-w.Done():
		testkit.Must(r, w.Err())
	case <-time.After(bound):
		r.Fatalf("writer %q did not end within %v:\n%s", args, bound, w.Log())
	}
}

// testDisconnect takes a node off the network for a minute. Writes wait and are not
// lost; calls answer within their bound.
func (r *rig) testDisconnect() {
	const n = 1
	r.image("disconnected")
	r.image("other")
	device := r.attach(n, "disconnected")
	w := r.writer(n, device)
	r.awaitWrites(n, w, 50)
	cephnet.Disconnect(r.nodes[n].Kernel, n, true)
	begun := time.Now()
	for _, args := range [][]string{{"attach", "other"}, {"detach", "disconnected"}} {
		out := r.fails(n, append([]string{"-site", sitePath, "-timeout", "4s"}, args...)...)
		if !strings.HasPrefix(out, "unavailable after ") && (args[0] == "attach" || !strings.HasPrefix(out, "precondition failed")) {
			r.Errorf("%v without a network: %s", args, out)
		}
	}
	if out := testkit.Value(r.client(n, "inspect", "disconnected"))(r); !strings.Contains(out, device) {
		r.Errorf("Inspect without a network: %s", out)
	}
	time.Sleep(time.Until(begun.Add(time.Minute))) // a minute is what must not lose data
	before := acknowledged(w)
	cephnet.Disconnect(r.nodes[n].Kernel, n, false)
	r.awaitWrites(n, w, 50)
	after := time.Since(begun)
	testkit.Must(r, w.Kill(r.Context()))
	r.check(n, device, 1, acknowledged(w))
	r.detach(n, "disconnected")
	r.detach(n, "other")
	fmt.Printf("REPORT: rbd: disconnected for a minute after %d acknowledged writes; 50 more by %.1f s after that began; all %d are there\n", before, after.Seconds(), acknowledged(w))
}
