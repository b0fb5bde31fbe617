package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/nft"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestTwoServersOnOneMachine(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t, "4420")
	f := open(t, c)
	apply(t, f, blocks(block)...)
	other := config(t, "3260")
	other.Table = "cleat-other"
	g := open(t, other)
	apply(t, g, blocks("198.51.100.0/24")...)
	wantHeld(t, f, block)
	wantHeld(t, g, "198.51.100.0/24")
	apply(t, g)
	testkit.Must(t, g.Close(t.Context()))
	wantHeld(t, f, block)

	// Table and state belong to one server.
	third := config(t)
	if _, err := Open(t.Context(), third); errs.KindOf(err) != errs.Precondition || !strings.Contains(fmt.Sprint(err), "pgrep -fa fence-holder") {
		t.Errorf("a table of another server was opened: %v", err)
	}
	if _, err := os.Lstat(third.HolderSocket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the holder of a server that could not begin is left over: %v", err)
	}
	if err := openBusy(t, c); errs.KindOf(err) != errs.Busy || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("serves process %d", os.Getpid())) {
		t.Errorf("the state of another server was opened: %v", err)
	}
	renamed := c
	renamed.Table = "renamed"
	testkit.Must(t, f.Close(t.Context()))
	if _, err := Open(t.Context(), renamed); errs.KindOf(err) != errs.Precondition || !strings.Contains(fmt.Sprint(err), `"cleat-test"`) {
		t.Errorf("the holder of a table of another name: %v", err)
	}
	wantHeld(t, open(t, c), block)
}

// openBusy opens with longer timeouts until it gets the PID that the holder
// serves.
func openBusy(t *testing.T, c Config) (err error) {
	for wait := 300 * time.Millisecond; wait < time.Minute; wait *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err = Open(ctx, c)
		cancel()
		if err == nil || errs.KindOf(err) == errs.Busy {
			break
		}
	}
	return err
}

// The socket is passed on.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t)
	c.Holder = holderCommand(newHolderWord)
	f := testkit.Value(Open(t.Context(), c))(t)
	apply(t, f, blocks(block)...)
	port, former := f.owner.Port(), f.Status().Holder
	testkit.Must(t, f.Close(t.Context()))
	c.Holder = holderCommand(HolderCommand)
	f = open(t, c)
	wantHeld(t, f, block)
	if f.owner.Port() != port || f.Status().Holder == former {
		t.Errorf("port %d and holder %d became %d and %d", port, former, f.owner.Port(), f.Status().Holder)
	}
	checkProtected(t)
}

func TestHolderOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	c := config(t)
	f := open(t, c)
	apply(t, f, blocks(block)...)
	former := f.Status().Holder
	testkit.Must(t, f.Close(t.Context()))
	there := testkit.Value(nft.Dial())(t)
	defer there.Close()
	testkit.Must(t, unix.Unshare(unix.CLONE_NEWNET))
	f = open(t, c)
	wantHeld(t, f)
	if f.Status().Holder == former {
		t.Error("the holder is still that of another namespace")
	}
	if table, err := there.Table(t.Context(), c.Table); err != nil || table.Flags != nft.Persist {
		t.Errorf("the table there is %+v, %v", table, err)
	}
	apply(t, f, blocks(block)...)
	checkProtected(t)
}

// It holds the socket and listens.
func TestHolderIsMinimal(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	inherited := testkit.Value(unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY, 0))(t) // without O_CLOEXEC
	defer unix.Close(inherited)
	f := open(t, config(t))
	dir := fmt.Sprintf("/proc/%d/", f.Status().Holder)
	entries, err := os.ReadDir(dir + "fd")
	testkit.Must(t, err)
	var got []string
	for _, e := range entries {
		to := testkit.Value(os.Readlink(dir + "fd/" + e.Name()))(t)
		kind, _, _ := strings.Cut(to, ":")
		got = append(got, kind)
	}
	slices.Sort(got)
	// Listener, directory, connection, and Go's poller.
	want := []string{"/dev/null", "/dev/null", "/dev/null", filepath.Dir(f.client.path), "anon_inode", "anon_inode", "socket", "socket", "socket"}
	slices.Sort(want)
	if !equal(got, want) {
		t.Errorf("open descriptors %v, want %v", got, want)
	}
	var session int
	if session, err = unix.Getsid(f.Status().Holder); err != nil || session != f.Status().Holder {
		t.Errorf("its session is %d: %v", session, err)
	}
	status := testkit.Value(os.ReadFile(dir + "status"))(t)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmRSS") || strings.HasPrefix(line, "RssAnon") || strings.HasPrefix(line, "Threads") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

func TestHolderRejectsManualStart(t *testing.T) {
	for _, args := range [][]string{nil, {"a"}, {"/tmp/x", "table"}} {
		if out, err := try(append([]string{"/proc/self/exe", HolderCommand}, args...)...); err == nil || !strings.Contains(out, "starts the fence holder itself") {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

func TestOpenRefusals(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	for name, change := range map[string]func(*Config){
		"invalid table name":       func(c *Config) { c.Table = "a b" },
		"no command to":            func(c *Config) { c.Holder = nil },
		"start a fence holder":     func(c *Config) { c.Holder = []string{"/nonexistent"} },
		"start a fence holder: no": func(c *Config) { c.Holder = []string{"/bin/sh", "-c", "echo no; exit 1"} },
		"start a fence holder: ":   func(c *Config) { c.HolderSocket = "/proc/none/holder.sock" },
	} {
		c := config(t)
		change(&c)
		f, err := Open(t.Context(), c)
		if err == nil {
			finish(t, f)
		}
		if !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if out := testkit.Run(t, "nft", "list", "tables"); out != "" {
		t.Errorf("left over: %s", out)
	}
}

func TestApplyRefusals(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	f := open(t, config(t))
	apply(t, f, blocks(block)...)
	for want, bad := range map[string]netip.Prefix{
		"not a valid CIDR": {},
		"write 10.0.0.0/8": netip.MustParsePrefix("10.0.0.1/8"),
		"is an IPv4 block": netip.MustParsePrefix("::ffff:10.0.0.0/104"),
	} {
		if err := f.Apply(t.Context(), []netip.Prefix{bad}); errs.KindOf(err) != errs.Invalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Apply(ctx, nil); errs.KindOf(err) != errs.Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Apply: %v", err)
	}
	if _, err := f.Held(ctx); errs.KindOf(err) != errs.Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled Held: %v", err)
	}
	wantHeld(t, f, block)
}

// The result is always the union.
func TestApplyReplacesAnyBlocks(t *testing.T) {
	t.Parallel()
	testkit.EnterNetNS(t)
	f := open(t, config(t, "4420"))
	rapid.Check(t, func(t *rapid.T) {
		var all []netip.Prefix
		for range rapid.IntRange(0, 12).Draw(t, "blocks") {
			var a netip.Addr
			low := byte(rapid.IntRange(0, 255).Draw(t, "low"))
			high := byte(rapid.SampledFrom([]int{0, 127, 255}).Draw(t, "high"))
			if rapid.Bool().Draw(t, "v4") {
				a = netip.AddrFrom4([4]byte{high, high, high, low})
			} else {
				a = netip.AddrFrom16([16]byte{high, high, high, high, high, high, high, high, high, high, 15: low})
			}
			bits := a.BitLen() - rapid.SampledFrom([]int{0, 1, 3, 8, a.BitLen()}).Draw(t, "host bits")
			p := testkit.Value(a.Prefix(bits))(t)
			if !p.Addr().Is4In6() {
				all = append(all, p)
			}
		}
		want := testkit.Value(cidr.Merge(all))(t)
		testkit.Must(t, f.Apply(context.Background(), all))
		got, err := f.Held(context.Background())
		if err != nil || !equal(got, want) {
			t.Fatalf("held %v (%v), want %v", got, err, want)
		}
	})
}
