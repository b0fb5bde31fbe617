package sock

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// abort resets a connection, like a rebooted client.
func abort(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	testkit.Must(t, conn.SetLinger(0))
	testkit.Must(t, conn.Close())
}

// The kernel lists no broken connection, but a hung server can still read what
// it has received.
func TestConnectionReset(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	for client, to := range map[string]string{clientV4: serverV4, clientV6: serverV6, otherV4: "::"} {
		listen, block := to, client+"/128"
		if to == "::" {
			to = serverV4
		}
		if to == serverV4 {
			block = client + "/32"
		}
		hanging := start(t, "hang", listen)
		conn := connect(t, client, to)
		hanging.expect(t, "accepted")
		send(t, conn, 1000)
		live := servedBy(t, s, 1, block)
		abort(t, conn)
		found := servedBy(t, s, 1, block)
		if found[0] != live[0] {
			t.Errorf("after the reset: %+v, want %+v", found[0], live[0])
		}
		unfinished(t, s, found, "still open in "+hanging.String())
		hanging.send(t, "read")
		if got := hanging.expect(t, "got"); !strings.HasPrefix(got, "1000 ") {
			t.Errorf("the server read %s: the test shows nothing", got)
		}
		hanging.send(t, "close")
		hanging.expect(t, "closed")
		testkit.Must(t, end(t, s, 30*time.Second, found))
		if left := sessions(t, s, block); len(left) != 0 {
			t.Errorf("after End: %v", left)
		}
		hanging.Kill()
	}
}

// The next process also finds who accepted the connection.
func TestAcceptedUnseen(t *testing.T) {
	namespace(t)
	idle := start(t, "idle", serverV4)
	conn := connect(t, clientV4, serverV4)
	send(t, conn, 1000)
	found := want(t, open(t, Config{}), 1, clientV4+"/32")
	if inodeOf(found[0]) != 0 {
		t.Fatalf("%+v", found)
	}
	idle.send(t, "accept")
	idle.expect(t, "accepted")
	abort(t, conn)
	again := open(t, Config{})
	unfinished(t, again, found, "still open in "+idle.String())
	idle.send(t, "read")
	idle.expect(t, "got")
	idle.send(t, "close")
	idle.expect(t, "closed")
	testkit.Must(t, end(t, again, 30*time.Second, found))
}

func drop(t *testing.T, client string) {
	t.Helper()
	family := "ip"
	if strings.Contains(client, ":") {
		family = "ip6"
	}
	testkit.Run(t, "nft", "add table inet shut; add chain inet shut in { type filter hook prerouting priority raw; }; add rule inet shut in "+family+" saddr "+client+" drop")
}

// beginConnection does not wait for an answer.
func beginConnection(t *testing.T, from, to string) {
	t.Helper()
	family := unix.AF_INET
	if strings.Contains(from, ":") {
		family = unix.AF_INET6
	}
	fd := testkit.Value(unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	testkit.Must(t, unix.Bind(fd, sockaddr(from, 0)))
	if err := unix.Connect(fd, sockaddr(to, port)); err != unix.EINPROGRESS {
		t.Fatalf("connect: %v", err)
	}
}

func sockaddr(address string, port int) unix.Sockaddr {
	addr := netip.MustParseAddr(address)
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4(), Port: port}
	}
	return &unix.SockaddrInet6{Addr: addr.As16(), Port: port}
}

// It would complete after the fence.
func TestHalfOpenConnection(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	start(t, "echo", serverV4, serverV6)
	for client, server := range map[string]string{clientV4: serverV4, clientV6: serverV6} {
		drop(t, server)
		beginConnection(t, client, server)
		block := client + "/32"
		if server == serverV6 {
			block = client + "/128"
		}
		found := want(t, s, 1, block)
		if inodeOf(found[0]) != 0 || !strings.Contains(found[0].Holder, "being set up") {
			t.Errorf("%+v", found)
		}
		drop(t, client) // the client retries
		testkit.Must(t, end(t, s, 30*time.Second, found))
		if left := sessions(t, s, block); len(left) != 0 {
			t.Errorf("after End: %v", left)
		}
		testkit.Run(t, "nft", "flush", "ruleset")
	}
}

// A connection closed by its server counts as ended.
func TestSocketClosedByServer(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	hanging := start(t, "hang", serverV4)
	conn := connect(t, clientV4, serverV4)
	hanging.expect(t, "accepted")
	found := servedBy(t, s, 1, clientV4+"/32")
	testkit.Must(t, conn.CloseWrite())
	hanging.send(t, "read")
	hanging.expect(t, "got 0 <nil>")
	drop(t, clientV4)
	hanging.send(t, "close")
	hanging.expect(t, "closed")
	if orphans := closedByServer(t, s); orphans != 1 {
		t.Fatalf("%d sockets wait for the client: the test shows nothing", orphans)
	}
	if listed := sessions(t, s, clientV4+"/32"); len(listed) != 0 {
		t.Errorf("listed, though no process can read from it: %v", listed)
	}
	testkit.Must(t, end(t, s, 30*time.Second, found))
	if orphans := closedByServer(t, s); orphans != 0 {
		t.Errorf("%d sockets still wait for the client", orphans)
	}
}

func closedByServer(t *testing.T, s *Sockets) int {
	t.Helper()
	all := testkit.Value(s.sockets())(t)
	n := 0
	for _, one := range all {
		if one.Local.Port() == port && roleOf(one) == closed {
			n++
		}
	}
	return n
}

func TestThreeThousandSessions(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	start(t, "echo", serverV4, serverV6)
	const each = 1500
	var conns []*net.TCPConn
	for range each {
		conns = append(conns, connect(t, clientV4, serverV4), connect(t, clientV6, serverV6))
	}
	kept := connect(t, otherV4, serverV4)
	both := []string{clientV4 + "/32", clientV6 + "/128"}
	found := want(t, s, 2*each, both...)
	begin := time.Now()
	testkit.Must(t, end(t, s, 60*time.Second, found))
	t.Logf("%d sessions ended in %v", len(found), time.Since(begin))
	if left := sessions(t, s, both...); len(left) != 0 {
		t.Errorf("after End: %d", len(left))
	}
	for _, conn := range conns {
		reset(t, conn)
	}
	alive(t, kept)
	if slices.ContainsFunc(found, func(one volume.Session) bool { return one.Client.Addr().String() == otherV4 }) {
		t.Errorf("%s is listed", otherV4)
	}
	ids := map[string]bool{}
	for _, one := range found {
		ids[one.ID] = true
	}
	if len(ids) != len(found) {
		t.Errorf("%d sessions have %d IDs", len(found), len(ids))
	}
}

// After End, its sessions have ended, however connections come, go and move.
func TestChurn(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	start(t, "echo", serverV4)
	for i := range 30 {
		var found []volume.Session
		for n := range 10 {
			conn := connect(t, clientV4, serverV4)
			send(t, conn, 100)
			switch (i + n) % 4 {
			case 0:
				found = append(found, sessions(t, s, clientV4+"/32")...)
				abort(t, conn)
			case 1:
				testkit.Must(t, conn.CloseWrite())
			case 2:
				testkit.Must(t, conn.Close())
			}
		}
		found = append(found, sessions(t, s, clientV4+"/32")...)
		testkit.Must(t, end(t, s, 30*time.Second, found))
		for _, left := range sessions(t, s, clientV4+"/32") {
			if slices.ContainsFunc(found, func(one volume.Session) bool { return cookie(t, one) == cookie(t, left) }) {
				t.Errorf("round %d: %v was ended and still exists", i, left)
			}
		}
	}
}

func cookie(t *testing.T, one volume.Session) string {
	t.Helper()
	id := testkit.Value(parseIdentity(one.ID))(t)
	return fmt.Sprint(id.cookie)
}
