package fence

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

const (
	// settled is several attempts of a client's kernel to connect again, which
	// makes one each second.
	settled = 5 * time.Second
	// diskTime is more than a quick disk of a guest takes for a write.
	diskTime = 2 * time.Second
)

// TestFence boots a target and a client, which all tests share.
func TestFence(t *testing.T) {
	const delay = 1500 * time.Millisecond
	first := netip.MustParseAddr("198.51.100.2")
	cut := &disk{name: "cut", from: first, options: []string{"fast_io_fail_tmo=1"}}
	kept := &disk{name: "kept", from: second}
	slow := &disk{name: "slow", from: first}
	r := newRig(t, cut, kept, slow)
	// The kernel of Debian 12 destroys sockets somewhat differently. The tests of
	// thousands of sessions run in a guest in make soak only.
	skip := "-test.skip=^(TestThreeThousandSessions|TestChurn)$"
	if soak.Enabled {
		skip = "-test.skip=^$"
	}
	for _, pkg := range []string{"./internal/linux/sockdiag", "./internal/linux/sockfd", "./fence/sock"} {
		t.Run(pkg, func(t *testing.T) { vm.GoTest(t, r.Node(server).Guest, pkg, skip) })
	}
	r.Node(server).Run("dmsetup", "create", "slow", "--table",
		fmt.Sprintf("0 %d delay %s 0 0 %s 0 %d", 2*lanes*mib/512, slow.device, slow.device, delay.Milliseconds()))
	r.Node(server).Run("dmsetup", "mknodes")
	slow.device = "/dev/mapper/slow"
	r.target(cut, kept, slow)

	r.testProtection(t, cut)
	r.testKernelTarget(t, cut, kept)
	for _, d := range []*disk{cut, kept} {
		testkit.Must(t, d.writer.Kill(t.Context()))
	}
	r.testSlowDisk(t, slow, delay)
}

// testKernelTarget: of a client with two addresses, one is fenced at a target
// in the kernel. Its writes stop; beyond those that the target had begun (see
// testSlowDisk) nothing arrives after the answer, also after the fence is
// lifted; the other address goes on.
func (r *rig) testKernelTarget(t *testing.T, cut, kept *disk) {
	first := cut.from
	r.write(cut, 1_000_000)
	r.connect(kept)

	asked := time.Now()
	if err := r.fence(first); err != nil {
		t.Fatalf("fence: %v\n%s", err, r.server.Log())
	}
	took := time.Since(asked)
	late, atAnswer := r.late(cut, diskTime)
	_, before := cut.acknowledged()
	kept.more(r, 100)
	r.ends(cut)
	time.Sleep(settled)
	later := cut.snapshot(r)
	if n := changes(atAnswer, later); n > 0 {
		t.Errorf("%d blocks changed after the answer", n)
	}
	cut.holds(r, later)
	if state := cut.controller.Attribute("state"); state == "live" {
		t.Errorf("the fenced client's controller is %s", state)
	}
	if _, err := nvmetcp.Connect(r.Node(client).Kernel, nvmetcp.Connection{
		Target: r.at(), Subsystem: cut.subsystem.NQN, Host: cut.host, Options: []string{"host_traddr=" + first.String(), "duplicate_connect"},
	}); err == nil {
		t.Error("the fenced client gets a new session")
	}
	kept.more(r, 100)

	if err := r.unfence(first); err != nil {
		t.Fatalf("unfence: %v\n%s", err, r.server.Log())
	}
	r.Node(client).Await("the client is connected again", func() bool { return cut.controller.Attribute("state") == "live" })
	time.Sleep(settled / 2)
	if n := changes(later, cut.snapshot(r)); n > 0 {
		t.Errorf("%d blocks changed when the fence was lifted, though nobody writes", n)
	}
	r.write(cut, 2_000_000)
	kept.more(r, 100)
	fmt.Printf("REPORT: fence: a kernel's NVMe/TCP target (%s), %d acknowledged writes of the client, 8 at a time: fenced in %.2f s; %d writes were done after the answer, nothing arrived later, nor after unfencing\n",
		r.Node(server).Guest.Release(), before, took.Seconds(), late)
}

// late is how many blocks change after the answer, until nothing has changed for
// longer than the disk takes for a write, and what is on the disk then.
func (r *rig) late(d *disk, quiet time.Duration) (n int, after []byte) {
	r.Helper()
	atAnswer := d.snapshot(r)
	changed := time.Now()
	after = atAnswer
	r.Node(client).Await("nothing changes on the disk "+d.name, func() bool {
		if now := d.snapshot(r); changes(after, now) > 0 {
			changed, after = time.Now(), now
		}
		return time.Since(changed) > quiet
	})
	if n = changes(atAnswer, after); n > lanes {
		r.Errorf("%s: %d blocks changed after the answer, more than the %d that can have been under way", d.name, n, lanes)
	}
	return n, after
}

// ends wants the writer to end with an I/O error, soon.
func (r *rig) ends(d *disk) {
	r.Helper()
	select {
	case <-d.writer.Done():
		r.Node(client).Refused(d.writer.Err(), syscall.EIO)
	case <-time.After(40 * time.Second):
		r.Fatalf("the writer to %s has not noticed the fence", d.name)
	}
}

// testSlowDisk measures what docs/fencing.md says of targets in the kernel:
// commands that the target had taken out of the socket before are carried out,
// and that is over when the disk has done them. A client that waits writes
// again when it is let in.
func (r *rig) testSlowDisk(t *testing.T, slow *disk, delay time.Duration) {
	r.connect(slow)

	asked := time.Now()
	if err := r.fence(slow.from); err != nil {
		t.Fatalf("fence: %v\n%s", err, r.server.Log())
	}
	answered := time.Now()
	late, done := r.late(slow, delay+diskTime)
	time.Sleep(settled)
	if n := changes(done, slow.snapshot(r)); n > 0 {
		t.Errorf("%d blocks changed later than the disk takes for a write", n)
	}
	slow.holds(r, done)
	if err := r.unfence(slow.from); err != nil {
		t.Fatalf("unfence: %v\n%s", err, r.server.Log())
	}
	slow.more(r, 2*lanes) // the same writer: its kernel sends again what was never answered
	fmt.Printf("REPORT: fence: a kernel's target whose disk takes %v for a write: answered after %.2f s, %d of %d writes under way were done after the answer, none later than that\n",
		delay, answered.Sub(asked).Seconds(), late, lanes)
}

// testProtection: what keeps the table on a kernel without persist, and that a
// target in the kernel is not taken for fenced without leave. The server that it
// leaves has that leave.
func (r *rig) testProtection(t *testing.T, cut *disk) {
	first := cut.from
	r.serve()
	r.connect(cut)
	n := r.Node(server)

	err := r.fence(first)
	if code := grpcstatus.Code(err); code != codes.Unavailable && code != codes.FailedPrecondition || !strings.Contains(err.Error(), "kernel") {
		t.Errorf("without --kernel-targets: %v", err)
	}
	r.ends(cut) // shut out all the same
	testkit.Must(t, r.server.Signal(syscall.SIGTERM))
	<-r.server.Done()
	held := func() bool { return strings.Contains(n.Run("nft", "list", "ruleset"), first.String()) }
	if !held() {
		t.Error("the server took the fence with it")
	}
	r.serve("--kernel-targets")
	if err := r.fence(first); err != nil {
		t.Fatalf("fence: %v\n%s", err, r.server.Log())
	}
	page := testkit.Value(r.status("/status"))(t)
	t.Logf("status: %s", page)
	if !strings.Contains(page, "owner") || strings.Contains(page, "owner+persist\"") {
		t.Errorf("what protects the table on %s: %s", n.Guest.Release(), page)
	}
	t.Logf("tables:\n%s", n.Run("nft", "list", "tables"))
	tables := n.Run("nft", "list", "tables")
	for range 3 {
		_, _ = n.Try("nft", "flush", "ruleset") // what it may not flush it passes over, or it fails
		if !held() {
			t.Error("a stranger's flush has lifted the fence")
		}
		n.Await("the tables are whole again", func() bool { return n.Run("nft", "list", "tables") == tables })
	}
	// The server and all that guards the table die at once.
	n.Run("sh", "-c", "kill -9 $(pidof cleat)")
	<-r.server.Done()
	n.Await("nobody is left", func() bool { _, err := n.Try("pidof", "cleat"); return err != nil })
	if !held() {
		t.Error("the fence went with the processes")
	}
	t.Logf("tables after all have died:\n%s", n.Run("nft", "list", "tables"))
	r.serve("--kernel-targets")
	if now := n.Run("nft", "list", "tables"); now != tables {
		t.Errorf("after the start there are\n%s\nwant\n%s", now, tables)
	}
	testkit.Must(t, r.unfence(first))
	r.Node(client).Await("the client is connected again", func() bool { return cut.controller.Attribute("state") == "live" })
}
