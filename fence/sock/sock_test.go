package sock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestSessions(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	start(t, "echo", serverV4, serverV6)
	if found := sessions(t, s, "0.0.0.0/0", "::/0"); len(found) != 0 {
		t.Errorf("a listener alone: %v", found)
	}
	for _, from := range []string{clientV4, otherV4} {
		connect(t, from, serverV4)
	}
	for _, from := range []string{clientV6, otherV6} {
		connect(t, from, serverV6)
	}
	for _, c := range []struct {
		blocks []string
		want   []string
	}{
		{[]string{clientV4 + "/32"}, []string{clientV4}},
		{[]string{"10.9.0.0/24"}, []string{clientV4}},
		{[]string{"10.9.0.0/16", "10.9.0.0/24"}, []string{clientV4, otherV4}},
		{[]string{clientV6 + "/128"}, []string{clientV6}},
		{[]string{"fd09::/112", clientV4 + "/32"}, []string{clientV4, clientV6}},
		{[]string{"fd09::/64", "10.9.1.0/24"}, []string{otherV4, clientV6, otherV6}},
		{[]string{serverV4 + "/32", serverV6 + "/128", "10.8.0.0/16"}, nil},
		{nil, nil},
	} {
		found := want(t, s, len(c.want), c.blocks...)
		var clients []string
		for _, one := range found {
			clients = append(clients, one.Client.Addr().String())
			if one.Server.Port() != port || !strings.Contains(one.Holder, "(process ") && inodeOf(one) != 0 {
				t.Errorf("%+v", one)
			}
		}
		if diff := cmp.Diff(c.want, clients); diff != "" {
			t.Errorf("%v: want-, got+:\n%s", c.blocks, diff)
		}
	}
}

func TestPorts(t *testing.T) {
	namespace(t)
	start(t, "echo", serverV4)
	connect(t, clientV4, serverV4)
	want(t, open(t, Config{}), 1, clientV4+"/32")
	others := testkit.Value(ports.Parse([]string{"1-4419", "4421-65535"}))(t)
	if found := sessions(t, open(t, Config{Ports: others}), clientV4+"/32"); len(found) != 0 {
		t.Errorf("at other ports: %v", found)
	}
	all := testkit.Value(Open(t.Context(), Config{}))(t)
	defer all.Close()
	want(t, all, 1, clientV4+"/32")
}

func TestEnd(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	start(t, "echo", serverV4, serverV6)
	for client, c := range map[string]struct{ other, server, bits string }{
		clientV4: {otherV4, serverV4, "/32"},
		clientV6: {otherV6, serverV6, "/128"},
	} {
		block := client + c.bits
		fenced, kept := connect(t, client, c.server), connect(t, c.other, c.server)
		alive(t, fenced)
		found := servedBy(t, s, 1, block)
		testkit.Must(t, end(t, s, 30*time.Second, found))
		reset(t, fenced)
		alive(t, kept)
		if left := sessions(t, s, block); len(left) != 0 {
			t.Errorf("after End: %v", left)
		}
		testkit.Must(t, end(t, s, 30*time.Second, found)) // repeated
		again := connect(t, client, c.server)
		alive(t, again)
		if next := servedBy(t, s, 1, block); next[0].ID == found[0].ID {
			t.Errorf("the ID %s was reused", next[0].ID)
		}
	}
}

// A dual-stack server sees IPv4 clients with IPv6 addresses.
func TestMappedAddresses(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	start(t, "echo", "::")
	fenced, kept := connect(t, clientV4, serverV4), connect(t, clientV6, serverV6)
	alive(t, fenced)
	found := servedBy(t, s, 1, clientV4+"/32")
	if got := found[0].Client.String(); got != fenced.LocalAddr().String() {
		t.Errorf("the client is %s, want %v", got, fenced.LocalAddr())
	}
	if mapped := sessions(t, s, "::ffff:0:0/96"); len(mapped) != 0 {
		t.Errorf("under mapped addresses: %v", mapped)
	}
	testkit.Must(t, end(t, s, 30*time.Second, found))
	reset(t, fenced)
	alive(t, kept)
}

// A hung server can still read received bytes after its socket was destroyed,
// so End waits.
func TestHungServer(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	hanging := start(t, "hang", serverV4)
	fenced := connect(t, clientV4, serverV4)
	hanging.expect(t, "accepted")
	const bytes = 50000
	send(t, fenced, bytes)
	found := servedBy(t, s, 1, clientV4+"/32")
	holder := hanging.String()
	unfinished(t, s, found, holder)
	reset(t, fenced)
	if left := sessions(t, s, clientV4+"/32"); len(left) != 1 || left[0].ID != found[0].ID || left[0].Holder != found[0].Holder || !strings.HasPrefix(left[0].Holder, holder+" as descriptor ") {
		t.Errorf("while the server holds the socket: %v, want %v", left, found)
	}
	// The fence server restarts: the kernel has forgotten the connection, but
	// the server has it.
	again := open(t, Config{})
	unfinished(t, again, found, holder)
	hanging.send(t, "read")
	if got := hanging.expect(t, "got"); !strings.HasPrefix(got, fmt.Sprint(bytes)) {
		t.Errorf("the server read %s bytes, want the %d that had arrived", got, bytes)
	}
	unfinished(t, again, found, holder) // not closed by read
	hanging.send(t, "close")
	testkit.Must(t, end(t, again, 30*time.Second, found))
	hanging.expect(t, "closed")
}

// Its bytes would be read later, by a process that is not known yet.
func TestUnacceptedConnection(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	idle := start(t, "idle", serverV4)
	fenced := connect(t, clientV4, serverV4)
	send(t, fenced, 1000)
	found := want(t, s, 1, clientV4+"/32")
	if inodeOf(found[0]) != 0 || !strings.Contains(found[0].Holder, "accepted by "+idle.String()) {
		t.Errorf("%+v", found[0])
	}
	unfinished(t, s, found, "no server has accepted")
	testkit.Must(t, fenced.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if _, err := fenced.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("the connection was reset before it was accepted: %v", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- end(t, s, 20*time.Second, found) }()
	idle.send(t, "accept")
	idle.expect(t, "accepted")
	reset(t, fenced)
	select {
	case err := <-ended:
		t.Errorf("End returned %v while the server could still read", err)
	case <-time.After(100 * time.Millisecond):
	}
	idle.send(t, "read")
	if got := idle.expect(t, "got"); !strings.HasPrefix(got, "1000 ") {
		t.Errorf("the server read %s, want what had arrived", got)
	}
	idle.send(t, "close")
	testkit.Must(t, <-ended)
	if left := sessions(t, s, clientV4+"/32"); len(left) != 0 {
		t.Errorf("after End: %v", left)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// A connection that is never accepted ends with its server.
func TestServerIsKilled(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	for _, mode := range []string{"idle", "hang"} {
		victim := start(t, mode, serverV4)
		fenced := connect(t, clientV4, serverV4)
		send(t, fenced, 1000)
		found := want(t, s, 1, clientV4+"/32")
		if mode == "hang" {
			found = servedBy(t, s, 1, clientV4+"/32")
		}
		waitsFor := map[string]string{"idle": "no server has accepted", "hang": victim.String()}
		unfinished(t, s, found, waitsFor[mode])
		victim.Kill()
		testkit.Must(t, end(t, s, 30*time.Second, found))
		if left := sessions(t, s, clientV4+"/32"); len(left) != 0 {
			t.Errorf("%s: after the server was killed: %v", mode, left)
		}
	}
}

func TestChildHoldsTheSocket(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	parent := start(t, "child", serverV4)
	connect(t, clientV4, serverV4)
	parent.expect(t, "accepted")
	child := "sleep (process " + parent.expect(t, "child") + ")"
	// A program gets its name a moment after its start.
	found := wantWhich(t, s, 1, func(one volume.Session) bool { return strings.HasPrefix(one.Holder, child) }, clientV4+"/32")
	unfinished(t, s, found, child)
	parent.send(t, "kill")
	parent.expect(t, "killed")
	testkit.Must(t, end(t, s, 30*time.Second, found))
}

// A socket without a process counts as the kernel's.
func TestKernelTargets(t *testing.T) {
	namespace(t)
	refusing, allowing := open(t, Config{}), open(t, Config{KernelTargets: true})
	kernel := start(t, "lost", serverV4)
	fenced := connect(t, clientV4, serverV4)
	kernel.expect(t, "accepted")
	kernel.expect(t, "lost")
	found := want(t, refusing, 1, clientV4+"/32")
	if inodeOf(found[0]) == 0 || found[0].Holder != noVisibleProcess {
		t.Errorf("%+v", found[0])
	}
	// On a port that is not fenced it can be the storage.
	elsewhere := open(t, Config{Ports: testkit.Value(ports.Parse([]string{"1"}))(t)})
	if c, err := elsewhere.Coverage(t.Context(), blocks(clientV4+"/32")); err != nil || len(c.Unprotected) != 1 || len(c.Servers) != 0 {
		t.Errorf("coverage of another port: %+v, %v", c, err)
	}
	if err := end(t, refusing, 30*time.Second, found); !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), fenced.LocalAddr().String()) {
		t.Errorf("without leave: %v", err)
	}
	want(t, refusing, 1, clientV4+"/32")
	testkit.Must(t, end(t, allowing, 30*time.Second, found))
	reset(t, fenced)
	if left := sessions(t, allowing, clientV4+"/32"); len(left) != 0 {
		t.Errorf("after End: %v", left)
	}
}

func TestIdentities(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	for _, id := range []string{"", "tcp", "tcp/b/1", "tcp/b/1/2/3", "tcp//1/2", "tcp/b/x/2", "tcp/b/1/-2", "udp/b/1/2", "tcp/b/1/4294967296"} {
		if err := end(t, s, 30*time.Second, []volume.Session{{ID: id}}); !errors.Is(err, errs.Invalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
	// Sessions of another boot have ended, even if their numbers are in use.
	start(t, "echo", serverV4)
	kept := connect(t, clientV4, serverV4)
	alive(t, kept)
	found := servedBy(t, s, 1, clientV4+"/32")
	id := testkit.Value(parseIdentity(found[0].ID))(t)
	id.boot = "00000000-0000-0000-0000-000000000000"
	found[0].ID = id.String()
	testkit.Must(t, end(t, s, 30*time.Second, found))
	alive(t, kept)
	testkit.Must(t, end(t, s, 30*time.Second, nil))
}

func FuzzIdentity(f *testing.F) {
	f.Add("tcp/7f0a4c1e-5d0d-4a3f-9f38-6c5b7b7d8c11/1f/4711")
	f.Add("tcp/b/ffffffffffffffff/4294967295")
	f.Add("tcp/b/01/007")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := parseIdentity(text)
		if err != nil {
			if errs.KindOf(err) != errs.Invalid {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if again, err := parseIdentity(id.String()); err != nil || again != id {
			t.Errorf("%q is %v, which parses as %v, %v", text, id, again, err)
		}
	})
}

// An MPTCP client, which Go's servers accept by default, loses its path at
// once, but the kernel does not notify the server soon, so End waits.
func TestMultipath(t *testing.T) {
	namespace(t)
	s := open(t, Config{})
	multipath := start(t, "echo", serverV4)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(clientV4)}}
	dialer.SetMultipathTCP(true)
	conn := testkit.Value(dialer.DialContext(context.WithoutCancel(t.Context()), "tcp", net.JoinHostPort(serverV4, "4420")))(t)
	defer conn.Close()
	if is, err := conn.(*net.TCPConn).MultipathTCP(); err != nil || !is {
		t.Fatalf("the connection does not use MPTCP: %v, %v", is, err)
	}
	alive(t, conn.(*net.TCPConn))
	found := servedBy(t, s, 1, clientV4+"/32")
	unfinished(t, s, found, "still open in "+multipath.String())
	multipath.Kill()
	testkit.Must(t, end(t, s, 30*time.Second, found))
	if left := sessions(t, s, clientV4+"/32"); len(left) != 0 {
		t.Errorf("after End: %v", left)
	}
}
