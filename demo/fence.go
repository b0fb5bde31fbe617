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
	storageAt     = "192.0.2.1:4420" // of RFC 5737, as the clients' addresses
	fencedClient  = "192.0.2.2"
	otherClient   = "192.0.2.3"
	someRecords   = 20 // show that a client writes
	fenceAttempts = 3  // show that a fenced one tries
)

// fencing is the state of the chapter.
type fencing struct {
	*demo
	storage, clients netns
	server           *recordServer
	fenced, other    *recordClient
	service          *process
	client           *client.Client
	arrived          int // from the fenced client when the fence was answered
}

// newFence joins two network namespaces, or says why this machine cannot.
func newFence(d *demo) chapter {
	f := &fencing{demo: d}
	c := chapter{
		name: "fence",
		heading: "Fencing by cleat fence serve, between two network namespaces on a veth pair: packets, packet filter and sockets are the kernel's;\n" +
			"storage server and clients are parts of this program.",
		steps: []step{
			{name: "fence-start", title: "start storage and fencing", run: f.start},
			{name: "fence-add", title: "fence a client", run: f.fence,
				claim: "when a fence is answered the client's session is gone and nothing from it arrives any more; its neighbour writes on"},
			{name: "fence-kill", title: "kill -9 cleat fence serve", run: f.kill,
				claim: "a fence holds while its service is dead, and after the restart"},
			{name: "fence-remove", title: "unfence it", run: f.unfence,
				claim: "an unfenced client writes again, and no record is missing or came twice"},
			{name: "fence-stop", title: "stop storage and fencing", run: f.stop},
		},
		release: func(context.Context) error { f.close(); return nil },
	}
	if err := f.makeNetwork(); err != nil {
		c.leftOut = "this machine makes no network namespaces with a veth pair: " + err.Error()
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

// ip runs lines of ip(8) in a namespace. Descriptor 3 is that of the clients.
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
	f.arrived = len(f.server.of(fencedClient))
	held := must(f.client.List(ctx, client.Request{}))
	want(len(held) == 1 && held[0] == f.block()[0].String(), "%v is fenced, and the service lists %q", f.block(), held)
	n := f.staysOut(ctx)
	return fmt.Sprintf("%s; answered after %s; it sent %d records before, and none of %d attempts after arrived; %s writes on", f.block()[0], took, f.arrived, n, otherClient)
}

// staysOut wants nothing from the fenced client to arrive, though it tries, while
// its neighbour writes. It returns how often the client tried since.
func (f *fencing) staysOut(ctx context.Context) int64 {
	awaitAll(ctx, someRecords, f.other.worker)
	before := f.fenced.attempts.Load()
	eventually(ctx, func() error {
		if now := len(f.server.of(fencedClient)); now != f.arrived {
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
	n := f.staysOut(ctx)
	f.startService()
	f.awaitReady(ctx)
	n += f.staysOut(ctx)
	return fmt.Sprintf("none of %d attempts arrived, without the service and after its restart", n)
}

func (f *fencing) unfence(ctx context.Context) string {
	f.staysOut(ctx)
	began := time.Now()
	check(f.client.Unfence(ctx, client.Request{}, f.block()))
	awaitAll(ctx, someRecords, f.fenced.worker, f.other.worker)
	took := since(began)
	for _, c := range []*recordClient{f.fenced, f.other} {
		check(c.stop())
		check(complete(f.server.of(c.from), c.finished.Load()))
	}
	return fmt.Sprintf("it writes again within %s; %d records of it in all, none lost, none twice", took, f.fenced.finished.Load())
}

func (f *fencing) stop(ctx context.Context) string {
	check(f.client.Close())
	f.service.stop()
	// The process that keeps the packet filter's table outlives the service.
	check(endProcesses(ctx, f.path("fence")))
	f.close()
	noSockets(f.path("fence"))
	return "SIGTERM; it ended with exit code 0, no socket is left; the network namespaces are gone"
}

// close ends clients, server and namespaces.
func (f *fencing) close() {
	for _, c := range []*recordClient{f.fenced, f.other} {
		if c != nil {
			_ = c.stop() // its records were compared before
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
