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
	// reconnectTime covers several reconnect attempts of a client's kernel, one per
	// second.
	reconnectTime = 5 * time.Second
	// diskTime is longer than a write to a disk without delay takes.
	diskTime = 2 * time.Second
)

// TestFence boots a target and a client for all tests.
func TestFence(t *testing.T) {
	const delay = 1500 * time.Millisecond
	first := netip.MustParseAddr("198.51.100.2")
	fenced := &disk{name: "fenced", from: first, options: []string{"fast_io_fail_tmo=1"}}
	kept := &disk{name: "kept", from: second}
	slow := &disk{name: "slow", from: first}
	r := newRig(t, fenced, kept, slow)
	// The kernel of Debian 12 destroys sockets differently from newer ones.
	// Tests with thousands of sessions run only in make soak.
	skip := "-test.skip=^(TestThreeThousandSessions|TestChurn)$"
	if soak.Enabled {
		skip = "-test.skip=^$"
	}
	for _, pkg := range []string{"./internal/linux/sockdiag", "./internal/linux/sockfd", "./fence/sock"} {
		t.Run(pkg, func(t *testing.T) { vm.GoTest(t, r.Node(server).Guest, pkg, skip) })
	}
	r.Node(server).Run("dmsetup", "create", "slow", "--table",
		fmt.Sprintf("0 %d delay %s 0 0 %s 0 %d", 2*workers*mib/512, slow.device, slow.device, delay.Milliseconds()))
	r.Node(server).Run("dmsetup", "mknodes")
	slow.device = "/dev/mapper/slow"
	r.target(fenced, kept, slow)

	r.testProtection(t, fenced)
	r.testKernelTarget(t, fenced, kept)
	for _, d := range []*disk{fenced, kept} {
		testkit.Must(t, d.writer.Kill(t.Context()))
	}
	r.testSlowDisk(t, slow, delay)
}

// testKernelTarget fences one of a client's two addresses at a kernel target.
// Except for writes that the target had started (see testSlowDisk), nothing is
// written after the answer, even after the fence is removed. The other address
// is not affected.
func (r *rig) testKernelTarget(t *testing.T, fenced, kept *disk) {
	first := fenced.from
	r.write(fenced, 1_000_000)
	r.connect(kept)

	asked := time.Now()
	if err := r.fence(first); err != nil {
		t.Fatalf("fence: %v\n%s", err, r.server.Log())
	}
	took := time.Since(asked)
	late, atAnswer := r.late(fenced, diskTime)
	_, before := fenced.acknowledged()
	kept.awaitWrites(r, 100)
	r.ends(fenced)
	time.Sleep(reconnectTime)
	later := fenced.snapshot(r)
	if n := changes(atAnswer, later); n > 0 {
		t.Errorf("%d blocks changed after the in-flight writes", n)
	}
	fenced.holds(r, later)
	if state := fenced.controller.Attribute("state"); state == "live" {
		t.Errorf("got controller state %s of the fenced client", state)
	}
	if _, err := nvmetcp.Connect(r.Node(client).Kernel, nvmetcp.Connection{
		Target: r.at(), Subsystem: fenced.subsystem.NQN, Host: fenced.host, Options: []string{"host_traddr=" + first.String(), "duplicate_connect"},
	}); err == nil {
		t.Error("the fenced client created a new session")
	}
	kept.awaitWrites(r, 100)

	if err := r.unfence(first); err != nil {
		t.Fatalf("unfence: %v\n%s", err, r.server.Log())
	}
	r.Node(client).Await("the client has reconnected", func() bool { return fenced.controller.Attribute("state") == "live" })
	time.Sleep(reconnectTime / 2)
	if n := changes(later, fenced.snapshot(r)); n > 0 {
		t.Errorf("%d blocks changed after unfencing, without a writer", n)
	}
	r.write(fenced, 2_000_000)
	kept.awaitWrites(r, 100)
	fmt.Printf("REPORT: fence: a kernel's NVMe/TCP target (%s), %d acknowledged writes of the client, 8 at a time: fenced in %.2f s; %d in-flight writes were completed after the answer, none later, also not after unfencing\n",
		r.Node(server).Guest.Release(), before, took.Seconds(), late)
}

// late counts the blocks that change after the answer, until no block has
// changed for the time quiet. It returns the disk's contents at that time.
func (r *rig) late(d *disk, quiet time.Duration) (n int, after []byte) {
	r.Helper()
	atAnswer := d.snapshot(r)
	changed := time.Now()
	after = atAnswer
	r.Node(client).Await("no change on disk "+d.name, func() bool {
		if now := d.snapshot(r); changes(after, now) > 0 {
			changed, after = time.Now(), now
		}
		return time.Since(changed) > quiet
	})
	if n = changes(atAnswer, after); n > workers {
		r.Errorf("%s: %d blocks changed after the answer, want at most the %d in flight", d.name, n, workers)
	}
	return n, after
}

// ends verifies that the writer fails with an I/O error in time.
func (r *rig) ends(d *disk) {
	r.Helper()
	select {
	case <-d.writer.Done():
		r.Node(client).WantErrno(d.writer.Err(), syscall.EIO)
	case <-time.After(2 * time.Minute):
		r.Fatalf("the writer to %s did not fail after the fence", d.name)
	}
}

// testSlowDisk measures the limitation of kernel targets in docs/fencing.md:
// commands that the target had read from the socket are completed, which ends
// when the disk has done them. A blocked client continues writing after
// unfencing.
func (r *rig) testSlowDisk(t *testing.T, slow *disk, delay time.Duration) {
	r.connect(slow)

	asked := time.Now()
	if err := r.fence(slow.from); err != nil {
		t.Fatalf("fence: %v\n%s", err, r.server.Log())
	}
	answered := time.Now()
	late, done := r.late(slow, delay+diskTime)
	time.Sleep(reconnectTime)
	if n := changes(done, slow.snapshot(r)); n > 0 {
		t.Errorf("%d blocks changed later than the disk's write latency", n)
	}
	slow.holds(r, done)
	if err := r.unfence(slow.from); err != nil {
		t.Fatalf("unfence: %v\n%s", err, r.server.Log())
	}
	slow.awaitWrites(r, 2*workers) // the same writer: its kernel resends unanswered commands
	fmt.Printf("REPORT: fence: a kernel's target whose disk takes %v for a write: answered after %.2f s, %d of %d in-flight writes were completed after the answer, none later\n",
		delay, answered.Sub(asked).Seconds(), late, workers)
}

// testProtection verifies the table's protection on a kernel without persist,
// and that a kernel target is not reported as fenced without --kernel-targets.
// The server that it leaves running has that flag.
func (r *rig) testProtection(t *testing.T, fenced *disk) {
	first := fenced.from
	r.serve()
	r.connect(fenced)
	n := r.Node(server)

	err := r.fence(first)
	if code := grpcstatus.Code(err); code != codes.Unavailable && code != codes.FailedPrecondition || !strings.Contains(err.Error(), "kernel") {
		t.Errorf("without --kernel-targets: %v", err)
	}
	r.ends(fenced) // blocked nevertheless
	testkit.Must(t, r.server.Signal(syscall.SIGTERM))
	<-r.server.Done()
	held := func() bool { return strings.Contains(n.Run("nft", "list", "ruleset"), first.String()) }
	if !held() {
		t.Error("the fence did not survive the server's exit")
	}
	r.serve("--kernel-targets")
	if err := r.fence(first); err != nil {
		t.Fatalf("fence: %v\n%s", err, r.server.Log())
	}
	page := testkit.Value(r.status("/status"))(t)
	t.Logf("status: %s", page)
	if !strings.Contains(page, "owner") || strings.Contains(page, "owner+persist\"") {
		t.Errorf("protection of the table on %s: got %s", n.Guest.Release(), page)
	}
	t.Logf("tables:\n%s", n.Run("nft", "list", "tables"))
	tables := n.Run("nft", "list", "tables")
	for range 3 {
		_, _ = n.Try("nft", "flush", "ruleset") // skips protected tables, or fails
		if !held() {
			t.Error("a foreign flush removed the fence")
		}
		n.Await("the tables are restored", func() bool { return n.Run("nft", "list", "tables") == tables })
	}
	// The server and its guard processes are killed together.
	n.Run("sh", "-c", "kill -9 $(pidof cleat)")
	<-r.server.Done()
	n.Await("all processes have exited", func() bool { _, err := n.Try("pidof", "cleat"); return err != nil })
	if !held() {
		t.Error("the fence did not survive the processes")
	}
	t.Logf("tables after the kill:\n%s", n.Run("nft", "list", "tables"))
	r.serve("--kernel-targets")
	if now := n.Run("nft", "list", "tables"); now != tables {
		t.Errorf("got tables after the restart\n%s\nwant\n%s", now, tables)
	}
	testkit.Must(t, r.unfence(first))
	r.Node(client).Await("the client has reconnected", func() bool { return fenced.controller.Attribute("state") == "live" })
}
