package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cleatproject/cleat/test/fence/rig"
	nbd "github.com/cleatproject/cleat/test/fence/storage"
	"github.com/cleatproject/cleat/test/testkit"
)

// Addresses of the storage network, a bridge of the node.
var (
	server4 = netip.MustParseAddr("192.0.2.1")
	server6 = netip.MustParseAddr("2001:db8::1")
)

// nbdDisk is an nbd-server on this node; storageClient is a machine that writes
// to it.
type nbdDisk struct {
	path    string
	writers atomic.Uint64 // number of writers so far
}

type storageClient struct {
	*rig.Namespace
	addr4, addr6 netip.Addr
}

// A NetworkFence blocks exactly its client, survives restarts on the storage
// server, and can be removed.
func testFencedClient(t *testing.T, d *nbdDisk) {
	t.Parallel()
	s := &addons{newSpace(t)}
	s.network()
	bad, good := s.client(7), s.client(8)
	first, second, others := bad.writer(s, d, server4), bad.writer(s, d, server6), good.writer(s, d, server4)
	s.refusedFences()
	blocks := []string{"192.0.2.7/32", "2001:db8::7/128"}
	s.Cleanup(func() { s.remove("networkfence", "client") })
	s.fenced("client", "server", blocks...)
	// All of this is true as soon as the fence is answered.
	reached, _, err := nbd.Newest(d.path, first.ID)
	testkit.Must(t, err)
	watch := bad.watch()
	if err := bad.refused(t.Context(), server4, server6); err != nil {
		t.Error(err)
	}
	if out := s.node("ss", "-Htn", "state", "established", "sport = :10809"); strings.Contains(out, "192.0.2.7") || strings.Contains(out, "2001:db8::7") || !strings.Contains(out, "192.0.2.8") {
		t.Errorf("sessions of the server:\n%s", out)
	}
	if table := s.node("nft", "list", "table", "inet", "cleat_fence"); !strings.Contains(table, "192.0.2.7") || !strings.Contains(table, "2001:db8::7") || !strings.Contains(table, "10809") {
		t.Errorf("the packet filter is\n%s", table)
	}
	for _, w := range []*nbd.Writer{first, second} {
		select {
		case <-w.Done():
		case <-time.After(waitTimeout):
			t.Error("the client's session is not reset")
		}
	}
	s.onStorage("192.0.2.7/32", "cleat", "fence", "list")
	s.remove("networkfence", "client")
	s.restartFence()
	s.reinstallFence()
	s.peerFence(d, good, others)
	if err := watch(); err != nil {
		t.Error(err)
	}
	if now, _, err := nbd.Newest(d.path, first.ID); err != nil || now != reached {
		t.Errorf("the disk had write %d of the client when it was fenced, but now has %d (%v)", reached, now, err)
	}
	s.unfenced("client", "server", blocks...)
	for _, to := range []netip.Addr{server4, server6} {
		bad.writer(s, d, to)
	}
}

// refusedFences checks that invalid NetworkFences fail with a reason.
func (a *addons) refusedFences() {
	a.Helper()
	a.Cleanup(func() { a.remove("networkfence", "wrong") })
	for block, message := range map[string]string{
		"192.0.2.0/24": "192.0.2.0/24 covers 192.0.2.1, an address of this server or of a peer; nothing was fenced. Remove the block, or force it with the parameter fence.cleat.dev/force=true",
		"192.0.2.7/24": "write 192.0.2.0/24 for the block, or 192.0.2.7/32 for the single address",
	} {
		a.networkFence("wrong", "server", "Fenced", "Failed", message, block)
		a.remove("networkfence", "wrong")
	}
	// The sidecar itself requires a secret with every fence.
	a.fenceClass("bare", "fence.cleat.dev", "")
	a.networkFence("wrong", "bare", "Fenced", "Failed", "resource name may not be empty", "192.0.2.9/32")
	a.remove("networkfence", "wrong")
}

// restartFence kills the service, then the sidecar, and waits until both are
// back. The sidecar notices a restart of the service only at its next call.
func (a *addons) restartFence() {
	a.Helper()
	before := a.connected(storageNode, func(csiAddonsNode) error { return nil })
	a.kill("cleat", "fence", "serve", "--name=fence.cleat.dev")
	a.onStorage("192.0.2.7/32", "cleat", "fence", "list", "--timeout=60s")
	a.kill("csi-addons-sidecar", "--leader-election-namespace="+system, "--csi-addons-address=/run/csi-addons/fence.sock")
	const updated = "sidecar.csiaddons.openshift.io/lastUpdatedAt"
	a.connected(storageNode, func(n csiAddonsNode) error {
		if n.Metadata.Annotations[updated] == before.Metadata.Annotations[updated] {
			return errors.New("the sidecar is not back yet")
		}
		return nil
	})
}

// kill kills the only process with these words in its command line.
func (a *addons) kill(words ...string) {
	a.Helper()
	testkit.Must(a, syscall.Kill(a.processesOf(1, words...)[0], syscall.SIGKILL))
}

// reinstallFence uninstalls the release while a fence exists, which stays in
// force, and installs it again, which adopts the fence.
func (a *addons) reinstallFence() {
	a.Helper()
	testkit.Must(a, storageRelease.remove(a.Context()))
	a.gone(storageNode)
	if len(processesWith(a.T, "fence", "serve", "--name=fence.cleat.dev"))+len(processesWith(a.T, "fence-holder")) > 0 {
		a.Error("processes of the removed release are left")
	}
	if table := a.node("nft", "list", "table", "inet", "cleat_fence"); !strings.Contains(table, "192.0.2.7") {
		a.Errorf("the packet filter without the release:\n%s", table)
	}
	testkit.Must(a, storageRelease.add(a.Context()))
	a.onStorage("192.0.2.7/32", "cleat", "fence", "list", "--timeout=60s")
}

// peerFence fences a client through a driver that has the storage server as a
// peer.
func (a *addons) peerFence(d *nbdDisk, c *storageClient, w *nbd.Writer) {
	a.Helper()
	ctx, cancel := context.WithTimeout(a.Context(), waitTimeout)
	defer cancel()
	if err := w.Await(ctx, 10); err != nil {
		a.Errorf("an unfenced client cannot write: %v", err)
	}
	a.Cleanup(func() { a.remove("networkfence", "other") })
	a.fenced("other", "each", "192.0.2.8/32")
	reached, _, err := nbd.Newest(d.path, w.ID)
	testkit.Must(a, err)
	if err := c.refused(ctx, server4); err != nil {
		a.Error(err)
	}
	<-w.Done()
	if now, _, err := nbd.Newest(d.path, w.ID); err != nil || now != reached {
		a.Errorf("the disk had write %d when the client was fenced, but now has %d (%v)", reached, now, err)
	}
	a.unfenced("other", "each", "192.0.2.8/32")
	c.writer(a, d, server4)
}

// network creates the storage network until the end of the test.
func (a *addons) network() {
	a.Helper()
	a.node("ip", "link", "add", "storage", "type", "bridge")
	a.Cleanup(func() {
		if out, err := exec.Command("ip", "link", "del", "storage").CombinedOutput(); err != nil {
			a.Errorf("%v: %s", err, out)
		}
	})
	a.node("ip", "addr", "add", server4.String()+"/24", "dev", "storage")
	a.node("ip", "addr", "add", server6.String()+"/64", "dev", "storage", "nodad")
	a.node("ip", "link", "set", "storage", "up")
}

// node runs a program on the node.
func (a *addons) node(args ...string) string {
	a.Helper()
	cmd := exec.CommandContext(a.Context(), args[0], args[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		a.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// client creates a machine on the storage network, with 192.0.2.N and
// 2001:db8::N.
func (a *addons) client(n int) *storageClient {
	a.Helper()
	c := &storageClient{rig.NewNamespace(a), netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", n))}
	port := fmt.Sprintf("client%d", n)
	c.MustRun(a, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", fmt.Sprintf("/proc/%d/ns/net", os.Getpid()))
	a.node("ip", "link", "set", port, "master", "storage", "up")
	c.MustRun(a, "ip", "addr", "add", c.addr4.String()+"/24", "dev", "eth0")
	c.MustRun(a, "ip", "addr", "add", c.addr6.String()+"/64", "dev", "eth0", "nodad")
	c.MustRun(a, "ip", "link", "set", "eth0", "up")
	return c
}

// nbdServer starts Debian's nbd-server on the node, a daemon with a process per
// client.
func (a *addons) nbdServer() *nbdDisk {
	a.Helper()
	dir := a.TempDir()
	d := &nbdDisk{path: filepath.Join(dir, "disk")}
	config, pid := filepath.Join(dir, "config"), filepath.Join(dir, "pid")
	testkit.Must(a, os.WriteFile(config, fmt.Appendf(nil, "[generic]\nport = %d\n[disk]\nexportname = %s\n", nbd.NBDPort, d.path), 0o600))
	testkit.Must(a, errors.Join(os.WriteFile(d.path, nil, 0o600), os.Truncate(d.path, nbd.DiskSize)))
	a.node("nbd-server", "-C", config, "-p", pid)
	var server int
	a.until("nbd-server", func(context.Context) error {
		text, err := os.ReadFile(pid)
		if err != nil {
			return err
		}
		server, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err
	})
	a.Cleanup(func() { _ = syscall.Kill(server, syscall.SIGTERM) })
	return d
}

// dial connects to the storage server, with the timeout of a client whose
// packets are dropped.
func (c *storageClient) dial(ctx context.Context, to netip.Addr, wait time.Duration) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return c.Dial(ctx, netip.AddrPortFrom(to, nbd.NBDPort), netip.Addr{})
}

// writer starts a session that writes until the end of the test, and waits for
// the first write.
func (c *storageClient) writer(a *addons, d *nbdDisk, to netip.Addr) *nbd.Writer {
	a.Helper()
	conn, err := c.dial(a.Context(), to, waitTimeout)
	if err != nil {
		a.Fatalf("connect %s to %s: %v", c.addr4, to, err)
	}
	id := d.writers.Add(1)
	session, err := nbd.NBDSession(id, conn)
	if err != nil {
		a.Fatal(errors.Join(err, conn.Close()))
	}
	w := nbd.NewWriter(id, session, 5*time.Millisecond)
	a.Cleanup(w.Close)
	ctx, cancel := context.WithTimeout(a.Context(), waitTimeout)
	defer cancel()
	if err := w.Await(ctx, 10); err != nil {
		a.Fatalf("write from %s to %s: %v", c.addr4, to, err)
	}
	return w
}

// refused returns an error if the client can connect to any address.
func (c *storageClient) refused(ctx context.Context, to ...netip.Addr) error {
	for _, addr := range to {
		switch conn, err := c.dial(ctx, addr, 500*time.Millisecond); {
		case err == nil:
			return errors.Join(fmt.Errorf("fenced client %s connected to %s", c.addr4, addr), conn.Close())
		case !rig.IsTimeout(err):
			return fmt.Errorf("%s to %s: got %w, want a timeout", c.addr4, addr, err)
		}
	}
	return nil
}

// watch tries to connect repeatedly until the returned function is called,
// which returns an error if any attempt succeeded.
func (c *storageClient) watch() func() error {
	ctx, stop := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	var failed error
	tries := 0
	wait.Go(func() {
		for ; ctx.Err() == nil && failed == nil; tries++ {
			if err := c.refused(ctx, server4, server6); ctx.Err() == nil {
				failed = err
			}
		}
	})
	return func() error {
		stop()
		wait.Wait()
		if failed == nil && tries < 5 {
			failed = fmt.Errorf("only %d attempts were made", tries)
		}
		return failed
	}
}

// onStorage waits until a command in the fence's container prints a text.
func (a *addons) onStorage(want string, command ...string) {
	a.Helper()
	a.until(strings.Join(command, " "), func(ctx context.Context) error {
		pods, err := testCluster.Client.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=storage"})
		if err != nil || len(pods.Items) != 1 {
			return fmt.Errorf("got %d pods of the fence (%v)", len(pods.Items), err)
		}
		out, err := testCluster.Kubectl(ctx, "", append([]string{"-n", system, "exec", pods.Items[0].Name, "-c", "fence", "--"}, command...)...)
		if err == nil && !strings.Contains(out, want) {
			err = fmt.Errorf("output %s", out)
		}
		return err
	})
}
