package sock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/volume"
)

// serverMode tells the test binary to be a storage server.
const serverMode = "CLEAT_TEST_SOCK_SERVER"

func TestMain(m *testing.M) {
	if mode := os.Getenv(serverMode); mode != "" {
		if err := serve(mode, os.Args[1:]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// The addresses of the rig's namespace. Clients and servers are in the same
// one: it is the address that tells them apart.
const (
	serverV4, clientV4, otherV4 = "10.9.0.1", "10.9.0.2", "10.9.1.3"
	serverV6, clientV6, otherV6 = "fd09::1", "fd09::2", "fd09::1:3"
	port                        = 4420
)

// namespace moves this test into a network namespace of its own, which ends
// with it.
func namespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must(t, unix.Unshare(unix.CLONE_NEWNET))
	command(t, "ip", "link", "set", "lo", "up")
	for _, addr := range []string{serverV4, clientV4, otherV4, serverV6, clientV6, otherV6} {
		bits := "/32"
		if strings.Contains(addr, ":") {
			bits = "/128"
		}
		args := []string{"address", "add", addr + bits, "dev", "lo"}
		if bits == "/128" {
			args = append(args, "nodad")
		}
		command(t, "ip", args...)
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, config Config) *Sockets {
	t.Helper()
	if config.Ports.IsAll() {
		set, err := ports.Parse([]string{fmt.Sprint(port)})
		must(t, err)
		config.Ports = set
	}
	s, err := Open(t.Context(), config)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	if status := s.Status(); !status.Destroys {
		t.Fatalf("this kernel does not destroy sockets: %s", status.Detail)
	}
	return s
}

// server is a storage server as a process of its own.
type server struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Scanner
}

// start starts a server that listens on an address of the rig.
func start(t *testing.T, mode string, listen ...string) *server {
	t.Helper()
	s := &server{cmd: exec.Command(os.Args[0], listen...)}
	s.cmd.Env = append(os.Environ(), serverMode+"="+mode)
	var err error
	s.stdin, err = s.cmd.StdinPipe()
	must(t, err)
	out, err := s.cmd.StdoutPipe()
	must(t, err)
	s.cmd.Stderr = os.Stderr
	s.lines = bufio.NewScanner(out)
	must(t, s.cmd.Start())
	t.Cleanup(s.kill)
	s.expect(t, "ready")
	return s
}

// String is the server as a holder of sockets.
func (s *server) String() string {
	return fmt.Sprintf("%s (process %d)", filepath.Base(os.Args[0]), s.cmd.Process.Pid)
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) tell(t *testing.T, word string) {
	t.Helper()
	_, err := fmt.Fprintln(s.stdin, word)
	must(t, err)
}

// expect reads the server's next line, which is to begin with a word.
func (s *server) expect(t *testing.T, word string) string {
	t.Helper()
	if !s.lines.Scan() {
		t.Fatalf("the server ended before it said %s: %v", word, s.lines.Err())
	}
	rest, is := strings.CutPrefix(s.lines.Text(), word)
	if !is {
		t.Fatalf("the server said %q, want %s", s.lines.Text(), word)
	}
	return strings.TrimSpace(rest)
}

// connect connects a client of an address to the server.
func connect(t *testing.T, from, to string) *net.TCPConn {
	t.Helper()
	conn, err := dial(from, to)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func dial(from, to string) (*net.TCPConn, error) {
	local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	remote := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), port))
	return net.DialTCP("tcp", local, remote)
}

func send(t *testing.T, conn *net.TCPConn, bytes int) {
	t.Helper()
	_, err := conn.Write(make([]byte, bytes))
	must(t, err)
}

func blocks(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func sessions(t *testing.T, s *Sockets, of ...string) []volume.Session {
	t.Helper()
	found, err := s.Sessions(t.Context(), blocks(of...))
	must(t, err)
	return found
}

// want waits until there are n sessions: a connection is the client's a moment
// before it is the server's.
func want(t *testing.T, s *Sockets, n int, of ...string) []volume.Session {
	t.Helper()
	return wantWhich(t, s, n, func(volume.Session) bool { return true }, of...)
}

// servedBy waits until a process holds n sessions.
func servedBy(t *testing.T, s *Sockets, n int, of ...string) []volume.Session {
	t.Helper()
	return wantWhich(t, s, n, func(one volume.Session) bool { return strings.Contains(one.Holder, "(process ") && inodeOf(one) != 0 }, of...)
}

func wantWhich(t *testing.T, s *Sockets, n int, which func(volume.Session) bool, of ...string) []volume.Session {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		found := sessions(t, s, of...)
		if len(found) == n && !slices.ContainsFunc(found, func(one volume.Session) bool { return !which(one) }) {
			return found
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions of %v, want %d such: %v", len(found), of, n, found)
		}
	}
}

func inodeOf(one volume.Session) uint32 {
	id, err := parseIdentity(one.ID)
	if err != nil {
		panic(err)
	}
	return id.inode
}

// end ends sessions within a time.
func end(t *testing.T, s *Sockets, within time.Duration, all []volume.Session) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return s.End(ctx, all)
}

// unfinished has End try, for longer each time, until it tells that it still
// waits for something: a machine that stalls may end a short try before its
// first look. It fails when End ends otherwise.
func unfinished(t *testing.T, s *Sockets, all []volume.Session, what string) {
	t.Helper()
	for within := 100 * time.Millisecond; ; within *= 2 {
		err := end(t, s, within, all)
		switch {
		case !errors.Is(err, errs.Unavailable):
			t.Fatalf("End: %v; want it to wait, and to tell of %q", err, what)
		case strings.Contains(err.Error(), what):
			return
		case within > 30*time.Second:
			t.Fatalf("End waits, but for something else than %q: %v", what, err)
		}
	}
}

// reset fails unless the server's side has cut the connection.
func reset(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(30*time.Second)))
	if n, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
		t.Errorf("the client read %d bytes, %v; want a reset", n, err)
	}
}

// alive fails unless the server still answers on a connection.
func alive(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	send(t, conn, 1)
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("a connection that is not to end: %v", err)
	}
}
