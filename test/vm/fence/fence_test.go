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

	"github.com/cleatproject/cleat/test/vm/nvmetcp"
)

const (
	// settled is several attempts of a client's kernel to connect again, which
	// makes one each second.
	settled = 5 * time.Second
	// diskTime is more than a quick disk of a guest takes for a write.
	diskTime = 10 * time.Second
)

// TestKernelTarget: of a client with two addresses, one is fenced at a target
// in the kernel. Its writes stop; beyond those that the target had begun (see
// TestSlowDisk) nothing arrives after the answer, also after the fence is
// lifted; the other address goes on.
func TestKernelTarget(t *testing.T) {
	first := netip.MustParseAddr("198.51.100.2")
	cut := &disk{name: "cut", from: first, options: []string{"fast_io_fail_tmo=1"}}
	kept := &disk{name: "kept", from: second}
	r := newRig(t, cut, kept)
	r.target(cut, kept)
	r.serve("--kernel-targets")
	r.connect(cut)
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
	r.write(cut, 1_000_000)
	kept.more(r, 100)
	fmt.Printf("REPORT: fence: a kernel's NVMe/TCP target (%s), %d acknowledged writes of the client, 8 at a time: fenced in %.2f s; %d writes were done after the answer, nothing arrived later, nor after unfencing\n",
		r.Node(server).Guest.Release(), before, took.Seconds(), late)
}

// late is how many blocks change after the answer, within the time that the
// disk takes, and what is on the disk then.
func (r *rig) late(d *disk, within time.Duration) (n int, after []byte) {
	r.Helper()
	atAnswer := d.snapshot(r)
	time.Sleep(within)
	after = d.snapshot(r)
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

// TestSlowDisk measures what docs/fencing.md says of targets in the kernel:
// commands that the target had taken out of the socket before are carried out,
// and that is over when the disk has done them. A client that waits writes
// again when it is let in.
func TestSlowDisk(t *testing.T) {
	const delay = 1500 * time.Millisecond
	slow := &disk{name: "slow", from: netip.MustParseAddr("198.51.100.2")}
	r := newRig(t, slow)
	r.Node(server).Run("dmsetup", "create", "slow", "--table",
		fmt.Sprintf("0 %d delay /dev/vda 0 0 /dev/vda 0 %d", 2*lanes*mib/512, delay.Milliseconds()))
	r.Node(server).Run("dmsetup", "mknodes")
	slow.device = "/dev/mapper/slow"
	r.target(slow)
	r.serve("--kernel-targets")
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

// TestProtection: what keeps the table on a kernel without persist, and that a
// target in the kernel is not taken for fenced without leave.
func TestProtection(t *testing.T) {
	first := netip.MustParseAddr("198.51.100.2")
	cut := &disk{name: "cut", from: first, options: []string{"fast_io_fail_tmo=1"}}
	r := newRig(t, cut)
	r.target(cut)
	r.serve()
	r.connect(cut)
	n := r.Node(server)

	err := r.fence(first)
	if code := grpcstatus.Code(err); code != codes.Unavailable && code != codes.FailedPrecondition || !strings.Contains(err.Error(), "kernel") {
		t.Errorf("without --kernel-targets: %v", err)
	}
	r.ends(cut) // shut out all the same
	if err := r.server.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-r.server.Done()
	held := func() bool { return strings.Contains(n.Run("nft", "list", "ruleset"), first.String()) }
	if !held() {
		t.Error("the server took the fence with it")
	}
	r.serve("--kernel-targets")
	if err := r.fence(first); err != nil {
		t.Fatalf("fence: %v\n%s", err, r.server.Log())
	}
	page, err := r.status("/status")
	if err != nil {
		t.Fatal(err)
	}
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
	if err := r.unfence(first); err != nil {
		t.Fatal(err)
	}
	r.Node(client).Await("the client is connected again", func() bool { return cut.controller.Attribute("state") == "live" })
}
