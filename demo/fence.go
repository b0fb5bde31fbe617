package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"time"

	"github.com/cleatproject/cleat/fence/client"
)

const (
	storageAt     = "192.0.2.1:4420" // addresses of RFC 5737
	fencedClient  = "192.0.2.2"
	otherClient   = "192.0.2.3"
	someRecords   = 20 // enough to show that a client writes
	fenceAttempts = 3  // enough to show that a fenced client tries to write
)

// fencing is the state of the fence chapter.
type fencing struct {
	*demo
	storage, clients netns
	server           *recordServer
	fenced, other    *recordClient
	service          *process
	client           *client.Client
	arrived          int // records of the fenced client when the fence was answered
}

// newFence creates two connected network namespaces. If that fails, the chapter
// is left out.
func newFence(d *demo) chapter {
	f := &fencing{demo: d}
	c := chapter{
		name: "fence",
		heading: "Fencing by cleat fence serve, between two network namespaces on a veth pair: packets, packet filter and sockets are real;\n" +
			"storage server and clients are parts of this program.",
		steps: []step{
			{name: "fence-start", title: "start storage and fencing", run: f.start},
			{name: "fence-add", title: "fence a client", run: f.fence,
				claim: "once a fence is answered, the client's session is closed and nothing more arrives from it; other clients continue"},
			{name: "fence-kill", title: "kill -9 cleat fence serve", run: f.kill,
				claim: "a fence stays in force while its service is dead and after the restart"},
			{name: "fence-remove", title: "unfence the client", run: f.unfence,
				claim: "an unfenced client writes again, and no record is lost or duplicated"},
			{name: "fence-stop", title: "stop storage and fencing", run: f.stop},
		},
		release: func(context.Context) error { f.close(); return nil },
	}
	if err := f.makeNetwork(); err != nil {
		c.leftOut = "cannot create network namespaces with a veth pair: " + err.Error()
		f.close()
	}
	return c
}

func (f *fencing) makeNetwork() (err error) {
	if f.storage, err = newNetns(); err != nil {
		return err
	}
	if f.clients, err = newNetns(); err != nil {
		return err
	}
	err = f.ip(f.storage, "link set lo up", "link add eth0 type veth peer name eth0 netns /proc/self/fd/3", "addr add 192.0.2.1/24 dev eth0", "link set eth0 up")
	if err != nil {
		return err
	}
	return f.ip(f.clients, "addr add "+fencedClient+"/24 dev eth0", "addr add "+otherClient+"/24 dev eth0", "link set eth0 up")
}

// ip runs lines of ip(8) in a namespace. File descriptor 3 is the namespace of
// the clients.
func (f *fencing) ip(n netns, lines ...string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	cmd.ExtraFiles = append(cmd.ExtraFiles, f.clients.file)
	return n.do(func() error {
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}

func (f *fencing) startService() {
	cmd := f.command("cleat", "fence", "serve", "--endpoint", "unix://"+f.path("fence", "run", "fence.sock"), "--state-dir", f.path("fence", "state"),
		"--ports", "4420", "--log-format", "text")
	f.service = f.startIn(f.storage, "fence service", cmd)
}

func (f *fencing) awaitReady(ctx context.Context) {
	eventually(ctx, func() error {
		ready, err := f.client.Probe(ctx)
		if err == nil && !ready {
			err = errors.New("the fence service is not ready")
		}
		return err
	})
}

func (f *fencing) start(ctx context.Context) string {
	check(f.storage.do(func() (err error) {
		f.server, err = serveRecords(storageAt)
		return err
	}))
	f.startService()
	f.client = must(client.Open(client.Target{Endpoint: f.path("fence", "run", "fence.sock")}))
	f.awaitReady(ctx)
	f.fenced, f.other = startRecordClient(f.clients, fencedClient, storageAt), startRecordClient(f.clients, otherClient, storageAt)
	awaitAll(ctx, someRecords, f.fenced.worker, f.other.worker)
	return fmt.Sprintf("%s and %s write to %s over TCP", fencedClient, otherClient, storageAt)
}

func (f *fencing) block() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fencedClient + "/32")}
}

func (f *fencing) fence(ctx context.Context) string {
	began := time.Now()
	check(f.client.Fence(ctx, client.Request{}, f.block()))
	took := since(began)
	f.arrived = len(f.server.recordsOf(fencedClient))
	held := must(f.client.List(ctx, client.Request{}))
	want(len(held) == 1 && held[0] == f.block()[0].String(), "%v is fenced, but the service lists %q", f.block(), held)
	n := f.checkFenced(ctx)
	return fmt.Sprintf("%s; answered after %s; %d records arrived before, none of %d attempts after that; %s continues to write", f.block()[0], took, f.arrived, n, otherClient)
}

// checkFenced fails if anything from the fenced client arrives while it tries
// to write and another client writes. It returns the number of attempts.
func (f *fencing) checkFenced(ctx context.Context) int64 {
	awaitAll(ctx, someRecords, f.other.worker)
	before := f.fenced.attempts.Load()
	eventually(ctx, func() error {
		if now := len(f.server.recordsOf(fencedClient)); now != f.arrived {
			check(fmt.Errorf("%d records of the fenced client %s arrived after the fence was answered", now-f.arrived, fencedClient))
		}
		if f.fenced.attempts.Load()-before < fenceAttempts {
			return fmt.Errorf("the fenced client %s does not try to write", fencedClient)
		}
		return nil
	})
	return f.fenced.attempts.Load() - before
}

func (f *fencing) kill(ctx context.Context) string {
	f.service.kill()
	n := f.checkFenced(ctx)
	f.startService()
	f.awaitReady(ctx)
	n += f.checkFenced(ctx)
	return fmt.Sprintf("none of %d attempts arrived while the service was dead and after its restart", n)
}

func (f *fencing) unfence(ctx context.Context) string {
	f.checkFenced(ctx)
	began := time.Now()
	check(f.client.Unfence(ctx, client.Request{}, f.block()))
	awaitAll(ctx, someRecords, f.fenced.worker, f.other.worker)
	took := since(began)
	for _, c := range []*recordClient{f.fenced, f.other} {
		check(c.stop())
		check(checkComplete(f.server.recordsOf(c.from), c.finished.Load()))
	}
	return fmt.Sprintf("writes resumed within %s; %d records in all, none lost, none duplicated", took, f.fenced.finished.Load())
}

func (f *fencing) stop(ctx context.Context) string {
	check(f.client.Close())
	f.service.stop()
	// The process that holds the nftables table outlives the service.
	check(endProcesses(ctx, f.path("fence")))
	f.close()
	checkNoSockets(f.path("fence"))
	return "SIGTERM; the service ended with exit code 0, no socket is left; the network namespaces are removed"
}

// close stops clients and server and closes the namespaces.
func (f *fencing) close() {
	for _, c := range []*recordClient{f.fenced, f.other} {
		if c != nil {
			_ = c.stop() // records were checked before
		}
	}
	if f.server != nil {
		_ = f.server.listener.Close()
	}
	for _, n := range []netns{f.storage, f.clients} {
		if n.file != nil {
			_ = n.file.Close()
		}
	}
}
