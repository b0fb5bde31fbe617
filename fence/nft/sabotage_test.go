package nft

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/nft"
	"github.com/cleatproject/cleat/test/testkit"
)

// Without table owners other programs can change everything: changes are
// signaled, seen by Held, and repaired by Apply.
func TestForeignChangesAreSeenAndRepaired(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t, "4420", "8009")
	c.unsupportedFlags = nft.Owner
	f := open(t, c)
	if got := f.Status().Protection; got != plainOnly {
		t.Errorf("the protection is %q", got)
	}
	wanted := []string{"192.0.2.0/24", "198.51.100.1/32", "2001:db8::/32"}
	apply(t, f, blocks(wanted...)...)
	const table = "inet cleat-test "
	for _, s := range []struct {
		does string
		left []string // still enforced
	}{
		{does: "flush ruleset"},
		{does: "delete table " + table},
		{does: "add table " + table + "{ flags dormant; }"},
		{does: "flush chain " + table + "input"},
		{does: "flush table " + table},
		{does: "delete rule " + table + "prerouting handle HANDLE"},
		{does: "insert rule " + table + "prerouting accept"},
		{does: "add rule " + table + "input counter"},
		{does: "replace rule " + table + "prerouting handle HANDLE ip saddr @clients4 meta l4proto @protocols th dport @ports counter accept"},
		{does: "replace rule " + table + "prerouting handle HANDLE ip saddr != @clients4 meta l4proto @protocols th dport @ports counter drop"},
		{does: "replace rule " + table + "prerouting handle HANDLE ip daddr @clients4 meta l4proto @protocols th dport @ports counter drop"},
		{does: "replace rule " + table + "prerouting handle HANDLE ip saddr @clients4 meta l4proto @protocols th sport @ports counter drop"},
		{does: "replace rule " + table + "prerouting handle HANDLE ip saddr @clients4 meta l4proto @protocols th dport @ports limit rate 1/second drop"},
		{does: "add chain " + table + "prerouting { type filter hook prerouting priority raw; policy drop; }"},
		{does: "add chain " + table + "another"},
		{does: "delete element " + table + "ports { 4420 }"},
		{does: "add element " + table + "protocols { icmp }"},
		{does: "delete element " + table + "clients4 { 192.0.2.0/24 }", left: []string{"198.51.100.1/32", "2001:db8::/32"}},
		{does: "add element " + table + "clients4 { 203.0.113.0/24 }", left: []string{"192.0.2.0/24", "198.51.100.1/32", "203.0.113.0/24", "2001:db8::/32"}},
		{does: "flush set " + table + "clients6", left: []string{"192.0.2.0/24", "198.51.100.1/32"}},
	} {
		does := strings.ReplaceAll(s.does, "HANDLE", firstHandle(t))
		testkit.Run(t, "nft", does)
		changed(t, f)
		if got, err := f.Held(t.Context()); err != nil || !equal(got, blocks(s.left...)) {
			t.Errorf("after %q: held %v (%v), want %v", does, got, err, s.left)
		}
		apply(t, f, blocks(wanted...)...)
		wantHeld(t, f, wanted...)
		drained(f)
	}
	// Changes of other tables are ignored. A late signal of an earlier change
	// is possible, but not each time.
	for round := 1; ; round++ {
		testkit.Run(t, "nft", "add table inet other; add chain inet other c; flush chain inet other c; delete table inet other; add table ip cleat-test")
		apply(t, f, blocks(wanted...)...)
		select {
		case <-f.Changed():
		case <-time.After(100 * time.Millisecond):
			return
		}
		if round == 10 {
			t.Fatal("a change of another table was signalled")
		}
	}
}

// drained discards late signals.
func drained(f *Filter) {
	select {
	case <-f.Changed():
	default:
	}
}

func firstHandle(t testing.TB) string {
	t.Helper()
	for line := range strings.Lines(testkit.Run(t, "nft", "-a", "list", "chain", "inet", "cleat-test", "prerouting")) {
		if _, handle, ok := strings.Cut(line, "@clients4"); ok {
			_, handle, _ = strings.Cut(handle, "# handle ")
			return strings.TrimSpace(handle)
		}
	}
	t.Fatal("there is no rule")
	return ""
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// If owners do not persist, the plain table survives the owner's end, and the
// owned one a flush by others.
//
// Not parallel: until exec, a child process of another test has a copy of the
// owner's socket, which keeps the table.
func TestTwoTablesOnOlderKernels(t *testing.T) {
	testkit.EnterNetNS(t)
	c := config(t)
	c.unsupportedFlags = nft.Persist
	s := startServer(t, c, block)
	testkit.Run(t, "nft", "flush", "ruleset")
	if inKernel(t, "cleat-test") || !inKernel(t, "cleat-test-owned") {
		t.Error("not just the plain table was flushed")
	}
	s.Kill()
	f := open(t, c)
	wantHeld(t, f, block)
	if !inKernel(t, "cleat-test") || f.Status().Protection != ownerTwice || f.Status().Holder != s.holder {
		t.Errorf("the tables were not completed: %+v", f.Status())
	}
	testkit.Run(t, "nft", "flush", "ruleset")
	changed(t, f)
	wantHeld(t, f)
	apply(t, f, blocks(block)...)
	wantHeld(t, f, block)
	testkit.Must(t, f.Close(t.Context()))
	killHolder(t, s.holder, unix.SIGKILL)
	if !inKernel(t, "cleat-test") || inKernel(t, "cleat-test-owned") {
		t.Error("not just the owned table went with its owner")
	}
	f = open(t, c)
	wantHeld(t, f, block)
	apply(t, f)
	testkit.Must(t, f.Close(t.Context()))
	if out := testkit.Run(t, "nft", "list", "tables"); out != "" {
		t.Errorf("left over: %s", out)
	}
}
