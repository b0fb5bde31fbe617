package sockfd

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

const holderMode = "CLEAT_TEST_SOCKFD_MODE"

func TestMain(m *testing.M) {
	if how := os.Getenv(holderMode); how != "" {
		if err := keep(how); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// keep keeps descriptor 3 open, in the process or only in one thread's table,
// until standard input ends.
func keep(how string) error {
	ready := make(chan error)
	if how == "thread" {
		go testkit.OnThread(func() {
			ready <- unix.Unshare(unix.CLONE_FILES)
			<-ready
		})
		if err := <-ready; err != nil {
			return err
		}
		runtime.LockOSThread()
		if err := unix.Close(3); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	bufio.NewScanner(os.Stdin).Scan()
	return nil
}

func start(t *testing.T, how string, kept *os.File) *testkit.Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holderMode+"="+how)
	cmd.ExtraFiles = []*os.File{kept}
	testkit.Value(cmd.StdinPipe())(t)
	child := testkit.Start(t, cmd)
	child.WaitFor(t, "ready")
	return child
}

func socket(t *testing.T) (*os.File, uint32) {
	t.Helper()
	pair := testkit.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	_ = unix.Close(pair[1])
	file := os.NewFile(uintptr(pair[0]), "socket")
	t.Cleanup(func() { _ = file.Close() })
	return file, inodeOf(t, pair[0])
}

func inodeOf(t *testing.T, fd int) uint32 {
	t.Helper()
	var st unix.Stat_t
	testkit.Must(t, unix.Fstat(fd, &st))
	return uint32(st.Ino)
}

func pids(of []Process) []int {
	var all []int
	for _, p := range of {
		all = append(all, p.PID)
	}
	return all
}

func TestHolders(t *testing.T) {
	kept, inode := socket(t)
	_, other := socket(t)
	for _, how := range []string{"process", "thread"} {
		child := start(t, how, kept)
		held, _, err := Holders(t.Context(), map[uint32]bool{inode: true})
		testkit.Must(t, err)
		if got := pids(held[inode]); !slices.Contains(got, os.Getpid()) || !slices.Contains(got, child.PID()) || len(held) != 1 {
			t.Errorf("%s: %v, want this process and %d; not %d", how, held, child.PID(), other)
		}
		child.Kill()
	}
	_ = kept.Close()
	if held, _, err := Holders(t.Context(), map[uint32]bool{inode: true}); err != nil || len(held) != 0 {
		t.Errorf("after all have closed: %v, %v", held, err)
	}
}

func TestHidden(t *testing.T) {
	_, inode := socket(t)
	if os.Getenv("CLEAT_TEST_SOCKFD_WEAK") != "" {
		_, hidden, err := Holders(t.Context(), map[uint32]bool{inode: true})
		if err != nil || len(hidden) == 0 || slices.Contains(pids(hidden), os.Getpid()) {
			t.Errorf("hidden: %v, %v", hidden, err)
		}
		return
	}
	child := exec.CommandContext(t.Context(), "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", os.Args[0], "-test.run=^TestHidden$")
	child.Env = append(os.Environ(), "CLEAT_TEST_SOCKFD_WEAK=1")
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func TestClosedTCP(t *testing.T) {
	testkit.Must(t, CanTakeDescriptors())
	testkit.EnterNetNS(t)
	never := func(uint32) bool { return false }
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l := testkit.Value(net.Listen("tcp", address))(t)
		client := testkit.Value(net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)))(t)
		conn := testkit.Value(l.Accept())(t)
		file := testkit.Value(conn.(*net.TCPConn).File())(t)
		fd := int(file.Fd())
		namespace := testkit.Value(unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE))(t)
		cookie := testkit.Value(unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE))(t)
		if found, err := ClosedTCP(t.Context(), namespace, never); err != nil || len(found) != 0 {
			t.Errorf("%s, while it lives: %v, %v", address, found, err)
		}
		_ = client.SetLinger(0)
		local := client.LocalAddr().(*net.TCPAddr).AddrPort()
		_ = client.Close()
		var found []Closed
		testkit.Eventually(t, "the socket is closed", func() bool {
			found = testkit.Value(ClosedTCP(t.Context(), namespace, never))(t)
			return len(found) > 0
		})
		if len(found) != 1 || found[0].Remote != local || found[0].Local.String() != l.Addr().String() ||
			found[0].Cookie != cookie || found[0].Inode != inodeOf(t, fd) || !slices.Equal(pids(found[0].Holders), []int{os.Getpid()}) {
			t.Errorf("%s: %+v", address, found)
		}
		if other, err := ClosedTCP(t.Context(), namespace+1, never); err != nil || len(other) != 0 {
			t.Errorf("%s, in another namespace: %v, %v", address, other, err)
		}
		if known, err := ClosedTCP(t.Context(), namespace, func(inode uint32) bool { return inode == found[0].Inode }); err != nil || len(known) != 0 {
			t.Errorf("%s, known to live: %v, %v", address, known, err)
		}
		_, _, _ = file.Close(), conn.Close(), l.Close()
	}
}

// A closed socket that cannot be inspected, here as the limit of open files is
// reached, is not one that does not exist.
func TestClosedTCPWithoutDescriptors(t *testing.T) {
	testkit.EnterNetNS(t)
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	client := testkit.Value(net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)))(t)
	conn := testkit.Value(l.Accept())(t)
	defer conn.Close()
	testkit.Must(t, client.SetLinger(0), client.Close())
	file := testkit.Value(conn.(*net.TCPConn).File())(t)
	defer file.Close()
	namespace := testkit.Value(unix.GetsockoptUint64(int(file.Fd()), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE))(t)
	find := func() ([]Closed, error) {
		return ClosedTCP(t.Context(), namespace, func(uint32) bool { return false })
	}
	testkit.Eventually(t, "the socket is closed", func() bool { return len(testkit.Value(find())(t)) == 1 })

	var limit unix.Rlimit
	testkit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	var spare []int
	defer func() {
		for _, fd := range spare {
			_ = unix.Close(fd)
		}
		testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	}()
	for len(spare) < 64 { // no number below the last one is free
		spare = append(spare, testkit.Value(unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0))(t))
	}
	failed := false
	for left := range 4 { // descriptors that can be opened
		testkit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(spare[63] + 1 + left), Max: limit.Max}))
		found, err := find()
		failed = failed || err != nil
		if err == nil && len(found) != 1 {
			t.Errorf("with %d descriptors left: %v, want the socket or an error", left, found)
		}
	}
	if !failed {
		t.Error("no limit was reached")
	}
}

func TestSocketInode(t *testing.T) {
	for link, want := range map[string]uint32{
		"socket:[123]": 123, "socket:[4294967295]": 4294967295,
		"socket:[4294967296]": 0, "socket:[": 0, "socket:[12": 0, "pipe:[123]": 0, "/socket:[123]": 0, "socket:[-1]": 0, "": 0,
	} {
		if got, is := socketInode([]byte(link)); got != want && is || is != (want != 0) {
			t.Errorf("%q: %d, %t", link, got, is)
		}
	}
}
