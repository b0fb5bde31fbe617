package nft

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/nft"
	"github.com/cleatproject/cleat/test/testkit"
)

const block = "192.0.2.0/24"

// inKernel asks nft(8).
func inKernel(t testing.TB, table string) bool {
	t.Helper()
	out, err := try("nft", "list", "table", "inet", table)
	return err == nil && strings.Contains(out, block) && strings.Contains(out, "drop")
}

func tableFlags(t testing.TB, name string) uint32 {
	t.Helper()
	c := testkit.Value(nft.Dial())(t)
	defer c.Close()
	table := testkit.Value(c.Table(t.Context(), name))(t)
	return table.Flags
}

func checkProtected(t testing.TB) {
	t.Helper()
	testkit.Run(t, "nft", "flush", "ruleset")
	for _, command := range []string{"delete table inet cleat-test", "flush chain inet cleat-test input", "delete element inet cleat-test clients4 { " + block + " }"} {
		if out, err := try("nft", command); err == nil {
			t.Errorf("%q of another program succeeded: %s", command, out)
		}
	}
	if !inKernel(t, "cleat-test") {
		t.Error("another program has lifted the fence")
	}
}

func changed(t testing.TB, f *Filter) {
	t.Helper()
	testkit.Receive(t, "the signal of a change", f.Changed())
}

func TestForeignChangesWhileServerRuns(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	f := open(t, config(t, "4420"))
	apply(t, f, blocks(block)...)
	checkProtected(t)
	wantHeld(t, f, block)
	select {
	case <-f.Changed():
		t.Error("a change was signalled without a change")
	default:
	}
}

// The holder protects the fence, and the next server takes over its socket.
func TestServerKilled(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t)
	s := startServer(t, c, block)
	s.Kill()
	checkProtected(t)
	f := open(t, c)
	wantHeld(t, f, block)
	if got := f.Status().Holder; got != s.holder {
		t.Errorf("the holder is process %d, not %d", got, s.holder)
	}
	checkProtected(t)
	apply(t, f, blocks("2001:db8::/32")...)
	wantHeld(t, f, "2001:db8::/32")
}

// The table keeps its owner, and the holder is replaced at once.
func TestHolderKilled(t *testing.T) {
	for _, signal := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			testkit.EnterNetNS(t)
			f := open(t, config(t))
			apply(t, f, blocks(block)...)
			first := f.Status().Holder
			killHolder(t, first, signal)
			checkProtected(t)
			changed(t, f)
			waitHolder(t, f, first)
			wantHeld(t, f, block)
			checkProtected(t)
		})
	}
}

func waitHolder(t testing.TB, f *Filter, former int) int {
	t.Helper()
	var now int
	testkit.Eventually(t, "there is a new holder", func() bool {
		now = f.Status().Holder
		return now != 0 && now != former
	})
	return now
}

// In either order the table stays without an owner, until the next server
// adopts it.
func TestBothKilled(t *testing.T) {
	for _, serverFirst := range []bool{true, false} {
		t.Run(fmt.Sprintf("server first %t", serverFirst), func(t *testing.T) {
			t.Parallel()
			testkit.EnterNetNS(t)
			c := config(t)
			s := startServer(t, c, block)
			if serverFirst {
				s.Kill()
				killHolder(t, s.holder, unix.SIGKILL)
			} else {
				// Suspended: it must not start another holder.
				testkit.Must(t, unix.Kill(s.PID(), unix.SIGSTOP))
				killHolder(t, s.holder, unix.SIGKILL)
				s.Kill()
			}
			if flags := tableFlags(t, c.Table); flags != nft.Persist || !inKernel(t, c.Table) {
				t.Fatalf("the table that was left has the flags %#x", flags)
			}
			f := open(t, c)
			wantHeld(t, f, block)
			if flags := tableFlags(t, c.Table); flags != nft.Owner|nft.Persist {
				t.Errorf("the table that was adopted has the flags %#x", flags)
			}
			checkProtected(t)
		})
	}
}

// A change of another program that Open cannot read lifts no fence until Apply.
func TestBothKilledAndChanged(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t)
	s := startServer(t, c, block)
	s.Kill()
	killHolder(t, s.holder, unix.SIGKILL)
	testkit.Run(t, "nft", "delete table inet cleat-test; table inet cleat-test { set clients4 { type ipv4_addr; flags interval, timeout; elements = { "+block+" timeout 1h }; }; "+
		"chain prerouting { type filter hook prerouting priority raw; ip saddr @clients4 drop; }; }")
	f := open(t, c)
	if !inKernel(t, c.Table) {
		t.Error("the next server has lifted the fence")
	}
	if blocks, err := f.Blocks(t.Context()); errs.KindOf(err) != errs.Precondition || !strings.Contains(err.Error(), "cleat-test") {
		t.Errorf("the blocks of the table are %v, %v", blocks, err)
	}
	apply(t, f, blocks(block)...)
	wantHeld(t, f, block)
	testkit.Diff(t, "blocks", fmt.Sprint(blocks(block)), fmt.Sprint(testkit.Value(f.Blocks(t.Context()))(t)))
	checkProtected(t)
}

// The remaining window: the next server starts with an empty table, which Held
// reports.
func TestBothKilledAndFlushed(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t)
	s := startServer(t, c, block)
	s.Kill()
	killHolder(t, s.holder, unix.SIGKILL)
	testkit.Run(t, "nft", "flush", "ruleset")
	began := time.Now()
	f := open(t, c)
	wantHeld(t, f)
	apply(t, f, blocks(block)...)
	t.Logf("fenced again %v after the next server began", time.Since(began).Round(time.Millisecond))
	wantHeld(t, f, block)
	checkProtected(t)
}

// The rules are recreated, and the blocks stay in force without a gap.
func TestChangePortsWithoutGap(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t, "4420")
	s := startServer(t, c, block)
	s.Kill()
	watch := testkit.Value(nft.Dial())(t)
	defer watch.Close()
	stop, looked := make(chan struct{}), make(chan string)
	go func() { looked <- lookForWindow(t, watch, stop) }()
	for _, words := range [][]string{{"4420"}, {}, {"3260", "4420"}} {
		c.Ports = testkit.Value(portsOf(words))(t)
		f := open(t, c)
		wantHeld(t, f, block)
		testkit.Must(t, f.Close(t.Context()))
	}
	close(stop)
	if fault := <-looked; fault != "" {
		t.Error(fault)
	}
	open(t, c) // for the cleanup
}

// lookForWindow reads until nothing is enforced. While the kernel replaces a table it
// already has the new generation and still lists the old table, which has no rules then
// (nf_tables_commit, nf_tables_dump_rules): a generation without rules is one in which
// several looks find none, and no look finds them.
func lookForWindow(t *testing.T, c *nft.Conn, stop <-chan struct{}) string {
	const several, enough = 3, 10
	var generation uint32
	var with, without int // looks of this generation
	for looks := 0; ; {
		select {
		case <-stop:
			if looks >= enough && with > 0 {
				return ""
			}
			if without >= 1000 {
				return "no rules in the end"
			}
		default:
		}
		before, err := c.Generation(t.Context())
		if err != nil {
			return err.Error()
		}
		rules, rulesErr := c.Rules(t.Context(), "cleat-test")
		elements, err := c.Elements(t.Context(), "cleat-test", clients4)
		err = errors.Join(rulesErr, err)
		after, afterErr := c.Generation(t.Context())
		if before != after || afterErr != nil {
			continue
		}
		if before != generation {
			if without >= several && with == 0 {
				return fmt.Sprintf("a window: no rules in generation %d", generation)
			}
			generation, with, without = before, 0, 0
		}
		if looks++; err != nil || len(elements) < 2 {
			return fmt.Sprintf("a window: %d rules, %d elements, %v", len(rules), len(elements), err)
		}
		if len(rules) == 4 {
			with++
		} else {
			without++
		}
	}
}

func TestCloseOfAnEmptyFilter(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t)
	f := open(t, c)
	apply(t, f, blocks(block)...)
	apply(t, f)
	holder := f.Status().Holder
	testkit.Must(t, f.Close(t.Context()))
	if err := unix.Kill(holder, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("the holder still lives: %v", err)
	}
	if out := testkit.Run(t, "nft", "list", "tables"); out != "" {
		t.Errorf("left over: %s", out)
	}
	if _, err := os.Lstat(c.HolderSocket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the holder's socket is left over: %v", err)
	}
	if err := f.Apply(t.Context(), nil); errs.KindOf(err) != errs.Unavailable || !errors.Is(err, os.ErrClosed) {
		t.Errorf("Apply after Close: %v", err)
	}
}

func TestCloseLiftsNoFence(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t)
	f := open(t, c)
	apply(t, f, blocks(block)...)
	holder := f.Status().Holder
	testkit.Must(t, f.Close(t.Context()))
	checkProtected(t)
	if again := open(t, c); again.Status().Holder != holder {
		t.Errorf("the holder is process %d, not %d", again.Status().Holder, holder)
	}
}
