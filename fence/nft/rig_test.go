package nft

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/test/testkit"
)

// Arguments that start the test binary as another process.
const (
	serverWord    = "server"
	newHolderWord = "newer-holder"
)

func TestMain(m *testing.M) {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		goleak.VerifyTestMain(m)
		return
	}
	var err error
	switch word, args := os.Args[1], os.Args[2:]; word {
	case HolderCommand:
		err = RunHolder(context.Background(), args)
	case newHolderWord:
		err = runHolder(context.Background(), args, protocol+1)
	case serverWord:
		err = runServer(args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Without an environment, the race detector would wait a second at the holder's
// end.
func holderCommand(word string) []string {
	return []string{"/usr/bin/env", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("/proc/%d/exe", os.Getpid()), word}
}

// runServer is a server process; args are the holder's socket, unsupported table
// flags, and blocks to fence. It prints its holder's PID and waits for SIGKILL.
func runServer(args []string) error {
	unsupportedFlags, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	f, err := Open(context.Background(), Config{
		Table: "cleat-test", HolderSocket: args[0],
		Holder: holderCommand(HolderCommand), unsupportedFlags: uint32(unsupportedFlags),
	})
	if err != nil {
		return err
	}
	if len(args) > 2 {
		if err := f.Apply(context.Background(), blocks(args[2:]...)); err != nil {
			return err
		}
	}
	fmt.Println("holder", f.Status().Holder)
	for {
		_ = unix.Pause() // signals of the Go runtime end it
	}
}

// server is such a process.
type server struct {
	*testkit.Process
	holder int
}

func startServer(t testing.TB, c Config, words ...string) *server {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{serverWord, c.HolderSocket, fmt.Sprint(c.unsupportedFlags)}, words...)...)
	s := &server{Process: testkit.Start(t, cmd)}
	testkit.Value(fmt.Sscanf(s.WaitFor(t, "holder "), "holder %d", &s.holder))(t)
	return s
}

// A pidfd is readable when the process has ended.
func killHolder(t testing.TB, pid int, signal unix.Signal) {
	t.Helper()
	fd := testkit.Value(unix.PidfdOpen(pid, 0))(t)
	defer unix.Close(fd)
	testkit.Must(t, unix.Kill(pid, signal))
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 60_000)
		switch {
		case err == unix.EINTR:
		case err != nil || n == 0:
			t.Fatalf("process %d does not end: %v", pid, err)
		default:
			return
		}
	}
}

func try(command ...string) (string, error) {
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	return string(out), err
}

func config(t testing.TB, words ...string) Config {
	t.Helper()
	set := testkit.Value(portsOf(words))(t)
	path := filepath.Join(t.TempDir(), "holder", "holder.sock")
	t.Cleanup(func() { killHoldersOf(t, path) })
	return Config{
		Table:        "cleat-test",
		Ports:        set,
		HolderSocket: path,
		Holder:       holderCommand(HolderCommand),
		Logger:       testkit.NewLog(t).Logger(),
	}
}

// killHoldersOf cleans up after a failed test.
func killHoldersOf(t testing.TB, path string) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	for _, line := range lines {
		said, err := os.ReadFile(line)
		if err != nil || !bytes.Contains(said, []byte(path+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(line))); err == nil {
			t.Logf("process %d is left over, and is killed", pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func portsOf(words []string) (ports.Set, error) {
	if len(words) == 0 {
		return ports.All(), nil
	}
	return ports.Parse(words)
}

// The holder ends with the test.
func open(t testing.TB, c Config) *Filter {
	t.Helper()
	f := testkit.Value(Open(t.Context(), c))(t)
	t.Cleanup(func() { finish(t, f) })
	return f
}

func finish(t testing.TB, f *Filter) {
	t.Helper()
	ctx := testkit.Context(t)
	if err := f.Apply(ctx, nil); err != nil && !f.closed {
		t.Errorf("lift: %v", err)
	}
	if err := f.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

func blocks(words ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, w := range words {
		all = append(all, netip.MustParsePrefix(w))
	}
	return all
}

func apply(t testing.TB, f *Filter, all ...netip.Prefix) {
	t.Helper()
	testkit.Must(t, f.Apply(t.Context(), all))
}

func held(t testing.TB, f *Filter) string {
	t.Helper()
	got := testkit.Value(f.Held(t.Context()))(t)
	return fmt.Sprint(got)
}

func wantHeld(t testing.TB, f *Filter, words ...string) {
	t.Helper()
	if got, want := held(t, f), fmt.Sprint(blocks(words...)); got != want {
		t.Errorf("held %s, want %s", got, want)
	}
}
