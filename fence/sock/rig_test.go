package sock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

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

// Clients and servers are in one namespace, with different addresses.
const (
	serverV4, clientV4, otherV4 = "10.9.0.1", "10.9.0.2", "10.9.1.3"
	serverV6, clientV6, otherV6 = "fd09::1", "fd09::2", "fd09::1:3"
	port                        = 4420
)

func namespace(t *testing.T) {
	t.Helper()
	testkit.EnterNetNS(t)
	for _, addr := range []string{serverV4, clientV4, otherV4, serverV6, clientV6, otherV6} {
		bits := "/32"
		if strings.Contains(addr, ":") {
			bits = "/128"
		}
		args := []string{"address", "add", addr + bits, "dev", "lo"}
		if bits == "/128" {
			args = append(args, "nodad")
		}
		testkit.Run(t, "ip", args...)
	}
	testkit.AwaitRoutes(t, serverV6, clientV6, otherV6)
}

func open(t *testing.T, config Config) *Sockets {
	t.Helper()
	if config.Ports.IsAll() {
		set := testkit.Value(ports.Parse([]string{fmt.Sprint(port)}))(t)
		config.Ports = set
	}
	s := testkit.Open(Open(t.Context(), config))(t)
	if status := s.Status(); !status.Destroys {
		t.Fatalf("this kernel does not destroy sockets: %s", status.Detail)
	}
	return s
}

type server struct {
	*testkit.Process
	stdin io.WriteCloser
}

func start(t *testing.T, mode string, listen ...string) *server {
	t.Helper()
	cmd := exec.Command(os.Args[0], listen...)
	cmd.Env = append(os.Environ(), serverMode+"="+mode)
	stdin := testkit.Value(cmd.StdinPipe())(t)
	s := &server{Process: testkit.Start(t, cmd), stdin: stdin}
	s.expect(t, "ready")
	return s
}

// String is the server as a session's holder.
func (s *server) String() string {
	return fmt.Sprintf("%s (process %d)", filepath.Base(os.Args[0]), s.PID())
}

func (s *server) send(t *testing.T, word string) {
	t.Helper()
	testkit.Value(fmt.Fprintln(s.stdin, word))(t)
}

// expect returns the rest of the line that begins with word.
func (s *server) expect(t *testing.T, word string) string {
	t.Helper()
	_, rest, _ := strings.Cut(s.WaitFor(t, word), word)
	return strings.TrimSpace(rest)
}

func connect(t *testing.T, from, to string) *net.TCPConn {
	t.Helper()
	conn := testkit.Value(dial(from, to))(t)
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
	testkit.Value(conn.Write(make([]byte, bytes)))(t)
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
	return testkit.Value(s.Sessions(t.Context(), blocks(of...)))(t)
}

// A connection exists for the client before it exists for the server.
func want(t *testing.T, s *Sockets, n int, of ...string) []volume.Session {
	t.Helper()
	return wantWhich(t, s, n, func(volume.Session) bool { return true }, of...)
}

func servedBy(t *testing.T, s *Sockets, n int, of ...string) []volume.Session {
	t.Helper()
	return wantWhich(t, s, n, func(one volume.Session) bool { return strings.Contains(one.Holder, "(process ") && inodeOf(one) != 0 }, of...)
}

func wantWhich(t *testing.T, s *Sockets, n int, which func(volume.Session) bool, of ...string) []volume.Session {
	t.Helper()
	var found []volume.Session
	testkit.EventuallyNil(t, "sessions", func() error {
		found = sessions(t, s, of...)
		if len(found) != n || slices.ContainsFunc(found, func(one volume.Session) bool { return !which(one) }) {
			return fmt.Errorf("%d sessions of %v, want %d such: %v", len(found), of, n, found)
		}
		return nil
	})
	return found
}

func inodeOf(one volume.Session) uint32 {
	id, err := parseIdentity(one.ID)
	if err != nil {
		panic(err)
	}
	return id.inode
}

func end(t *testing.T, s *Sockets, within time.Duration, all []volume.Session) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	return s.End(ctx, all)
}

// unfinished calls End with longer timeouts until it reports what it waits for:
// a stalled machine can time out before the first check.
func unfinished(t *testing.T, s *Sockets, all []volume.Session, what string) {
	t.Helper()
	for within := 100 * time.Millisecond; ; within *= 2 {
		err := end(t, s, within, all)
		switch {
		case !errors.Is(err, errs.Unavailable):
			t.Fatalf("End: %v; want it to wait for %q", err, what)
		case strings.Contains(err.Error(), what):
			return
		case within > 30*time.Second:
			t.Fatalf("End waits, but for something else than %q: %v", what, err)
		}
	}
}

func reset(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	testkit.Must(t, conn.SetReadDeadline(time.Now().Add(testkit.Timeout)))
	if n, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
		t.Errorf("the client read %d bytes, %v; want a reset", n, err)
	}
}

func alive(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	testkit.Must(t, conn.SetDeadline(time.Now().Add(testkit.Timeout)))
	send(t, conn, 1)
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("an unrelated connection: %v", err)
	}
}
