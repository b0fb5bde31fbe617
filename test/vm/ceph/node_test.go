package ceph

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/cephnet"
	"github.com/cleatproject/cleat/test/vm/nodeservice"
)

// testSanity runs csi-sanity's specs of the node service in a guest, with the
// controller on the host.
func (r *rig) testSanity() {
	const n = 1
	r.nodes[n].Sanity(r.forward(r.controller.Socket), "")
	r.wantNothing(n)
}

// forward serves a socket of the host to guests, and returns its address.
func (r *rig) forward(socket string) string {
	listener := testkit.Value(net.Listen("tcp", netip.AddrPortFrom(cephnet.HostAddress, 0).String()))(r)
	testkit.Go(r, func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
		for {
			from, err := listener.Accept()
			if err != nil {
				return nil
			}
			to, err := net.Dial("unix", socket)
			if err != nil {
				return err
			}
			end := func() { _, _ = from.Close(), to.Close() }
			stop := context.AfterFunc(ctx, end)
			copied := func(a, b net.Conn) { _, _ = io.Copy(a, b); end(); stop() }
			go copied(from, to)
			go copied(to, from)
		}
	})
	return listener.Addr().String()
}

// testLostState: a node whose state was deleted unpublishes and unstages its
// volumes, also those whose images have got another id since they were created.
func (r *rig) testLostState() {
	const n = 1
	block, ext4 := r.claim("lost-block", "", 64*mib), r.claim("lost-ext4", "ext4", 64*mib)
	for _, c := range []*claim{block, ext4} {
		was := volumes + "/" + c.Locator["imageName"]
		for _, args := range [][]string{{"deep", "cp", "--no-progress", was, was + "-copy"}, {"rm", "--no-progress", was}, {"mv", was + "-copy", was}} {
			testkit.Value(cluster.RBD(args...))(r)
		}
	}
	block.attach(n)
	ext4.attach(n)
	r.nodes[n].Stop()
	r.nodes[n].Run("rm", "-r", nodeservice.State)
	r.nodes[n].Start()
	for _, c := range []*claim{block, ext4} {
		c.detach(n)
		c.delete()
	}
	r.wantNothing(n)
}

// testPowerLoss: a node loses power while it writes, and boots. The volumes are
// staged and published again at the same paths, with all acknowledged writes.
func (r *rig) testPowerLoss() {
	const n = 0
	block, ext4 := r.claim("power-block", "", 64*mib), r.claim("power-ext4", "ext4", 64*mib)
	block.attach(n)
	ext4.attach(n)
	r.nodes[n].Run("sh", "-c", `echo kept > "$0"/file && sync`, ext4.Target)
	w := r.writer(n, block.Target)
	r.awaitWrites(n, w, 100)
	r.nodes[n].LosePower()
	<-w.Done()
	count := acknowledged(w)

	r.boot(n)
	r.startNode(n)
	for line := range strings.Lines(r.nodes[n].Process.Log()) {
		if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
			r.Errorf("log of the start after a power loss: %s", line)
		}
	}
	if held := r.devices(n); held != 0 {
		r.Errorf("%d devices before any call", held)
	}
	for _, c := range []*claim{block, ext4} {
		c.rig = r // its guest is another one
		testkit.Must(r, c.stage(n), c.publish(n))
	}
	r.check(n, block.Target, 1, count)
	if text := r.nodes[n].Read(ext4.Target + "/file"); text != "kept" {
		r.Errorf("the file has %q", text)
	}
	block.detach(n)
	ext4.detach(n)
	r.wantNothing(n)
	fmt.Printf("REPORT: rbd: power loss after %d acknowledged writes; all are there\n", count)
}
