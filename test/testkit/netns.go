package testkit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const threadNetNS = "/proc/thread-self/ns/net"

// EnterNetNS moves the test into a new network namespace, whose loopback is up,
// on a thread of its own. Programs that the test starts are in the namespace,
// goroutines are not.
func EnterNetNS(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	Must(t, unix.Unshare(unix.CLONE_NEWNET))
	Run(t, "ip", "link", "set", "lo", "up")
}

// AwaitRoutes waits until own IPv6 addresses, just added, can be connected to:
// the kernel adds their routes in the background, also with nodad.
func AwaitRoutes(t testing.TB, addrs ...string) {
	t.Helper()
	for _, addr := range addrs {
		EventuallyNil(t, "a route to "+addr, func() error {
			conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 9)))
			if err == nil {
				err = conn.Close()
			}
			return err
		})
	}
}

// insideNetNS is set in the environment of a test binary that RerunInNetNS has
// started.
const insideNetNS = "CLEAT_TEST_NETNS"

// RerunInNetNS runs this test binary again in a network namespace, with more
// environment, and returns its exit code; isInside: this process already is in
// it. Its loopback is down. TestMain calls it, for tests whose goroutines need
// addresses of their own.
func RerunInNetNS(env ...string) (code int, isInside bool) {
	if os.Getenv(insideNetNS) != "" {
		return 0, true
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread that starts it ends
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(append(os.Environ(), insideNetNS+"=1"), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace, as root:", err)
		return 1, false
	}
	return 0, false
}

// NetNS is an unnamed network namespace.
type NetNS struct {
	File *os.File // the namespace lives as long as its files and processes
}

// NewNetNS creates a network namespace whose loopback is up.
func NewNetNS(t testing.TB) NetNS {
	t.Helper()
	var n NetNS
	var err error
	OnThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			n.File, err = os.Open(threadNetNS)
		}
	})
	Must(t, err)
	t.Cleanup(func() { _ = n.File.Close() })
	Must(t, n.Do(func() error {
		Run(t, "ip", "link", "set", "lo", "up")
		return nil
	}))
	return n
}

// Path returns a path of the namespace for programs. /proc/PID/ns/net is not that
// of this process: its main thread can be inside Do.
func (n NetNS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.File.Fd()) }

// Do runs a function on a thread in the namespace. Sockets and programs that
// the function creates stay in it; goroutines that it starts are outside.
func (n NetNS) Do(do func() error) error {
	result := make(chan error, 1)
	go func() {
		err := fmt.Errorf("the function ended its goroutine (FailNow?)")
		defer func() { result <- err }()
		err = inNetNS(n.File, do)
	}()
	return <-result
}

// inNetNS runs a function with its goroutine locked to a thread in a network
// namespace. The thread ends with the goroutine if it cannot return to its own
// namespace.
func inNetNS(netns *os.File, do func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(threadNetNS)
	if err != nil {
		return err
	}
	defer home.Close()
	if isSame(home, netns) {
		defer runtime.UnlockOSThread()
		return do()
	}
	if err := unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	defer func() {
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return do()
}

func isSame(a, b *os.File) bool {
	first, err := a.Stat()
	second, err2 := b.Stat()
	return err == nil && err2 == nil && os.SameFile(first, second)
}
