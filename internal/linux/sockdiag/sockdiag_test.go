package sockdiag

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func alone(t *testing.T) *Conn {
	t.Helper()
	testkit.EnterNetNS(t)
	return testkit.Open(Dial())(t)
}

func pair(t *testing.T, address string) (server, client *net.TCPConn) {
	t.Helper()
	l := testkit.Open(net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))))(t)
	client = testkit.Value(net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr)))(t)
	t.Cleanup(func() { _ = client.Close() })
	server = testkit.Value(l.AcceptTCP())(t)
	t.Cleanup(func() { _ = server.Close() })
	return server, client
}

func addrPort(a net.Addr) netip.AddrPort {
	of := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(of.Addr().Unmap(), of.Port())
}

func find(t *testing.T, c *Conn, conn *net.TCPConn) Socket {
	t.Helper()
	all := testkit.Value(c.TCP())(t)
	for _, s := range all {
		if s.Local == addrPort(conn.LocalAddr()) && s.Remote == addrPort(conn.RemoteAddr()) {
			return s
		}
	}
	return Socket{}
}

func inode(t *testing.T, conn *net.TCPConn) uint32 {
	t.Helper()
	raw, err := conn.SyscallConn()
	testkit.Must(t, err)
	var st unix.Stat_t
	testkit.Must(t, raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }))
	return uint32(st.Ino)
}

func TestListAndDestroy(t *testing.T) {
	c := alone(t)
	testkit.Must(t, c.CanDestroy())
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		server, client := pair(t, address)
		testkit.Value(client.Write([]byte("abc")))(t)
		s := find(t, c, server)
		if s.State != Established || s.Inode != inode(t, server) || s.Receive != 3 || s.Cookie == 0 {
			t.Errorf("%s: %+v", address, s)
		}
		if again := find(t, c, server); again != s {
			t.Errorf("%s: listed again: %+v, want %+v", address, again, s)
		}
		if other := find(t, c, client); other.Cookie == s.Cookie || other.Inode != inode(t, client) {
			t.Errorf("%s: the client's socket: %+v", address, other)
		}
		wrong := s
		wrong.id[sizeofID-1] ^= 0xff // of the cookie
		if err := c.Destroy(wrong); !errors.Is(err, ErrGone) {
			t.Errorf("%s: another socket with these addresses: %v", address, err)
		}
		if err := c.Destroy(s); err != nil {
			t.Errorf("%s: %v", address, err)
		}
		if err := c.Destroy(s); !errors.Is(err, ErrGone) {
			t.Errorf("%s, again: %v", address, err)
		}
		if left := find(t, c, server); left != (Socket{}) {
			t.Errorf("%s: after Destroy: %+v", address, left)
		}
		_ = client.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the client: %v", address, err)
		}
		// The purpose of package fence/sock.
		if got, err := io.ReadAll(server); string(got) != "abc" || !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("%s: the server read %q, %v", address, got, err)
		}
	}
}

func TestListeners(t *testing.T) {
	c := alone(t)
	l := testkit.Value(net.Listen("tcp", "[::]:4420"))(t)
	defer l.Close()
	all, err := c.TCP()
	if err != nil || len(all) != 1 || all[0].State != Listen || all[0].Local.Port() != 4420 || all[0].Remote.Port() != 0 || all[0].Inode == 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

// The kernel can list TIME_WAIT connections under another state.
func TestReminders(t *testing.T) {
	c := alone(t)
	server, client := pair(t, "127.0.0.1:0")
	local, remote := server.LocalAddr(), server.RemoteAddr()
	_ = server.Close() // the client does not close: FIN_WAIT2 without a process
	testkit.Eventually(t, "the client has CLOSE_WAIT", func() bool { return find(t, c, client).State == CloseWait })
	left := func(s Socket) bool { return s.Local == addrPort(local) && s.Remote == addrPort(remote) }
	testkit.EventuallyNil(t, "the server's side is left out", func() error {
		all := testkit.Value(c.TCP())(t)
		if i := slices.IndexFunc(all, left); i >= 0 {
			return fmt.Errorf("listed: %+v", all[i])
		}
		return nil
	})
}

func TestNamespace(t *testing.T) {
	outside := testkit.Open(Dial())(t)
	inside := alone(t)
	a, errA := outside.Namespace()
	if b, errB := inside.Namespace(); errA != nil || errB != nil || a == b || a == 0 || b == 0 {
		t.Errorf("%d, %v and %d, %v", a, errA, b, errB)
	}
	server, _ := pair(t, "127.0.0.1:0")
	if found := find(t, outside, server); found != (Socket{}) {
		t.Errorf("from outside: %+v", found)
	}
}

// The message names the missing capability.
func TestCannotDestroy(t *testing.T) {
	if os.Getenv("CLEAT_TEST_SOCKDIAG_WEAK") == "" {
		t.Run("in a process without rights", func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", os.Args[0], "-test.run=^TestCannotDestroy$")
			cmd.Env = append(os.Environ(), "CLEAT_TEST_SOCKDIAG_WEAK=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
		return
	}
	c := testkit.Open(Dial())(t)
	testkit.WantError(t, "CanDestroy", c.CanDestroy(), unix.EPERM)
	testkit.Value(c.TCP())(t)
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, sizeofMessage))
	four := make([]byte, sizeofMessage+8)
	four[0], four[1], four[68] = unix.AF_INET, 1, 7
	f.Add(four)
	six := make([]byte, sizeofMessage)
	six[0], six[1], six[2] = unix.AF_INET6, 6, timerTimeWait
	f.Add(six)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, _, err := parse(b)
		if err != nil {
			return
		}
		if s.Local.Addr().Is4In6() || s.Remote.Addr().Is4In6() || !s.Local.IsValid() || s.Remote.Addr().Zone() != "" {
			t.Errorf("%+v", s)
		}
		if again := request(s.family, anyState, s.id); len(again) != sizeofRequest {
			t.Errorf("a request of %d bytes", len(again))
		}
	})
}
