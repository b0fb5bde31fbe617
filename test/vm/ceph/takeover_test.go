package ceph

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/cephnet"
)

func addrPort(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func (r *rig) testTakeovers() {
	for round := range takeovers() {
		lost := (round + 1) / 2 % 2 // in turn, with both values of replace
		r.takeover(fmt.Sprintf("takeover%d", round), lost, 1-lost, round%2 == 0)
	}
}

// takeover: node lost writes and is disconnected, its address is fenced, and node
// next gets the volume. When the lost node returns, none of its writes is visible,
// also after its address was unfenced.
func (r *rig) takeover(name string, lost, next int, replace bool) {
	c := r.claim(name, "", 64*mib)
	c.attach(lost)
	old, granted := c.Target, c.grants[lost]
	instance := r.nodes[lost].Run("sh", "-c", "cat /sys/bus/rbd/devices/*/client_addr") // of its only device
	log := "/run/" + name + ".log"                                                      // the output of a process reaches the host later
	w := testkit.Value(r.nodes[lost].Guest.Start(r.Context(), vm.Command{Argv: []string{"sh", "-c", `exec writer "$0" > "$1"`, old, log}}))(r)
	r.nodes[lost].Await("the writer writes", func() bool { return r.lines(lost, log) >= 100 })
	cephnet.Disconnect(r.nodes[lost].Kernel, lost, true)
	address := cephnet.GuestAddress(lost).String()
	begun := time.Now()
	r.fence("add", address)
	fenced := time.Since(begun)
	// With a request in flight the writer has logged all earlier ones.
	r.nodes[lost].Await("a write waits", func() bool { return r.nodes[lost].Run("sh", "-c", "cat /sys/block/rbd*/inflight | tr -d ' 0'") != "" })
	count := r.lines(lost, log)
	r.wantBlocked(address+":0/0", true)
	r.wantBlocked(instance, true)

	testkit.Must(r, c.revoke(lost))
	if err := c.grant(lost); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), address) {
		r.Errorf("ControllerPublishVolume to a fenced node: %v", err)
	}
	c.attach(next)
	r.check(next, c.Target, 1, count)
	// The cluster can have executed the write in flight before the fence. Its
	// answer then reaches the lost node when that returns.
	visible := count
	if _, err := r.nodes[next].Try("writer", "-check", fmt.Sprint(count+1), c.Target); err == nil {
		visible++
	}
	const seed, beyond = 2, 64
	r.run(next, "-seed", fmt.Sprint(seed), "-count", fmt.Sprint(count+beyond), c.Target)
	taken := time.Since(begun)

	cephnet.Disconnect(r.nodes[lost].Kernel, lost, false)
	select {
	case <-w.Done():
		r.nodes[lost].WantErrno(w.Err(), syscall.EIO)
	case <-time.After(2 * time.Minute):
		r.Fatal("the fenced writer did not fail")
	}
	failed := time.Since(begun)
	if all := r.lines(lost, log); all > visible {
		r.Errorf("the next node saw %d writes of the lost one, of which %d were acknowledged before the fence and %d later", visible, count, all-count)
	}
	r.check(next, c.Target, seed, count+beyond)
	r.wantDead(lost, old)

	// The address returns to use while the old device still exists.
	r.fence("rm", address)
	r.wantBlocked(address+":0/0", false)
	r.wantBlocked(instance, true)
	r.wantDead(lost, old)
	r.check(next, c.Target, seed, count+beyond)
	c.grants[lost] = granted // of calls that were on their way
	c.wantRefused(lost, "published at "+old)
	testkit.Must(r, c.unpublish(lost))
	c.detach(next)
	if replace {
		c.replaceDead(lost)
	} else {
		c.unstageDead(lost)
		c.attach(lost) // a new client
	}
	r.check(lost, c.Target, seed, count+beyond)
	c.detach(lost)
	c.delete()
	fmt.Printf("REPORT: rbd: takeover from node %d after %d acknowledged writes: fenced after %.1f s, the other node had written everything after %.1f s, the fenced writer failed after %.1f s\n",
		lost, count, fenced.Seconds(), taken.Seconds(), failed.Seconds())
}

// lines counts the lines of a file, which perhaps does not exist yet.
func (r *rig) lines(n int, file string) int {
	return testkit.Value(strconv.Atoi(r.nodes[n].Run("sh", "-c", `[ -e "$0" ] || exec echo 0; grep -c "" "$0" || true`, file)))(r)
}

// wantDead: neither writes nor reads of a fenced device succeed.
func (r *rig) wantDead(n int, device string) {
	_, err := r.nodes[n].Try("writer", "-seed", "3", "-count", "1", device)
	r.nodes[n].WantErrno(err, syscall.EIO)
	_, err = r.nodes[n].Try("dd", "if="+device, "of=/dev/null", "bs=4096", "count=1", "iflag=direct")
	r.nodes[n].WantErrno(err, syscall.EIO)
}

// unstageDead unstages a fenced device: at most the first call fails, with the
// loss of data that was not written.
func (c *claim) unstageDead(n int) {
	if c.unstage(n) != nil {
		testkit.Must(c, c.unstage(n))
	}
}

// wantRefused: the device of a fenced client is known as lost, and is not
// replaced while something uses it.
func (c *claim) wantRefused(n int, use string) {
	for _, call := range []func(int) error{c.stage, c.publish} {
		if err := call(n); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has fenced") || !strings.Contains(err.Error(), use) {
			c.Errorf("repeated call with a fenced device: %v; want FAILED_PRECONDITION, %q", err, use)
		}
	}
	ctx, cancel := c.call()
	defer cancel()
	health, err := c.nodes[n].Client().NodeGetVolumeHealth(ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: c.ID})
	if err != nil || !strings.Contains(health.String(), "DeviceLost") {
		c.Errorf("health of a volume with a fenced device: %v, %v", health, err)
	}
}

// replaceDead publishes a volume with a fenced device, as a kubelet does for the
// next pod: it replaces the device when no process uses it. At most one call
// fails, with the loss of data that was not written.
func (c *claim) replaceDead(n int) {
	user := testkit.Value(c.nodes[n].Guest.Start(c.Context(), vm.Command{Argv: []string{"sh", "-c", "exec sleep 1000 < /dev/rbd0"}}))(c)
	c.nodes[n].Await("a process uses the device", func() bool {
		return c.nodes[n].Run("sh", "-c", "ls -l /proc/[0-9]*/fd 2> /dev/null | grep -c /dev/rbd0 || true") != "0"
	})
	testkit.Must(c, c.grant(n))
	err := c.publish(n)
	if err != nil && !strings.Contains(err.Error(), "is used by process") {
		fmt.Printf("REPORT: rbd: the first publish after a fence: %v\n", err)
		err = c.publish(n)
	}
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "is used by process") {
		c.Errorf("publish with a fenced device in use: %v", err)
	}
	testkit.Must(c, user.Kill(c.Context()))
	if err := c.publish(n); err != nil {
		fmt.Printf("REPORT: rbd: a publish after the use of a fenced device: %v\n", err)
		testkit.Must(c, c.publish(n))
	}
}

// wantBlocked: the cluster's blocklist has an entry, or has it not.
func (r *rig) wantBlocked(entry string, want bool) {
	out := testkit.Value(cluster.Command("osd", "dump", "--format", "json"))(r)
	var dump struct{ Blocklist map[string]string }
	testkit.Must(r, json.Unmarshal([]byte(out), &dump))
	if has := dump.Blocklist[entry] != ""; has != want {
		r.Errorf("%s is on the blocklist: %t, want %t: %v", entry, has, want, dump.Blocklist)
	}
}
