package nft

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/fence/ports"
)

// Words by which the tests start themselves as other processes.
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

// holderCommand starts the test binary as a holder. A holder gets no environment;
// with this one the race detector does not wait a second at its end.
func holderCommand(word string) []string {
	return []string{"/usr/bin/env", "GORACE=atexit_sleep_ms=0", fmt.Sprintf("/proc/%d/exe", os.Getpid()), word}
}

// runServer is a server as a process: args are the holder's socket, flags that
// its kernel does not know, and blocks to fence. It says its holder and waits.
func runServer(args []string) error {
	without, err := strconv.ParseUint(args[1], 10, 32)
	if err != nil {
		return err
	}
	f, err := Open(context.Background(), Config{
		Table: "cleat-test", HolderSocket: args[0],
		Holder: holderCommand(HolderCommand), without: uint32(without),
	})
	if err != nil {
		return err
	}
	if len(args) > 2 {
		if err := f.Apply(context.Background(), blocks(args[2:]...)); err != nil {
			return err
		}
	}
	fmt.Println(f.Status().Holder)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return f.Close(context.Background())
}

// server is that process, as its starter sees it.
type server struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	holder int
}

func startServer(t testing.TB, c Config, words ...string) *server {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{serverWord, c.HolderSocket, fmt.Sprint(c.without)}, words...)...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &server{cmd: cmd, stdin: in}
	t.Cleanup(func() { s.kill() })
	if _, err := fmt.Fscan(out, &s.holder); err != nil {
		t.Fatalf("the server did not begin: %v", err)
	}
	return s
}

func (s *server) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

// killHolder kills one and waits until it is gone: a pidfd is readable then.
func killHolder(t testing.TB, pid int, signal unix.Signal) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Kill(pid, signal); err != nil {
		t.Fatal(err)
	}
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

// network gives the test a network namespace of its own, on a thread of its
// own that ends with it.
func network(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread goes with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "link", "set", "lo", "up")
}

// run runs a stranger's command in the test's network namespace.
func run(t testing.TB, command ...string) string {
	t.Helper()
	out, err := try(command...)
	if err != nil {
		t.Fatalf("%v: %v: %s", command, err, out)
	}
	return out
}

func try(command ...string) (string, error) {
	out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
	return string(out), err
}

func config(t testing.TB, words ...string) Config {
	t.Helper()
	set, err := portsOf(words)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "holder", "holder.sock")
	t.Cleanup(func() { killHoldersOf(t, path) })
	return Config{
		Table:        "cleat-test",
		Ports:        set,
		HolderSocket: path,
		Holder:       holderCommand(HolderCommand),
		Logger:       slog.New(slog.NewTextHandler(&logWriter{t: t}, nil)),
	}
}

// killHoldersOf kills what a test that failed has left.
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

type logWriter struct{ t testing.TB }

func (w *logWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// open opens a filter whose holder is gone when the test ends.
func open(t testing.TB, c Config) *Filter {
	t.Helper()
	f, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(t, f) })
	return f
}

// finish closes a filter and ends its holder.
func finish(t testing.TB, f *Filter) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
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
	if err := f.Apply(t.Context(), all); err != nil {
		t.Fatal(err)
	}
}

func held(t testing.TB, f *Filter) string {
	t.Helper()
	got, err := f.Held(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(got)
}

func wantHeld(t testing.TB, f *Filter, words ...string) {
	t.Helper()
	if got, want := held(t, f), fmt.Sprint(blocks(words...)); got != want {
		t.Errorf("held %s, want %s", got, want)
	}
}
