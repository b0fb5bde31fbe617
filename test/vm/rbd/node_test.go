package rbd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/cephnet"
)

// testSanity runs csi-sanity's specs of the node service in a guest, with the
// controller on the host.
func (r *rig) testSanity() {
	const n, report = 1, "/run/sanity.json"
	k := r.nodes[n]
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
	defer cancel()
	out, err := k.Guest.Run(ctx, "suite", "-endpoint=unix://"+socket, "-controllerendpoint=dns:///"+r.forward(r.controller.Socket),
		"-mountdir="+paths+"/sanity-mount", "-stagingdir="+paths+"/sanity-staging",
		"-ginkgo.focus=Node Service", "-ginkgo.json-report="+report, "-ginkgo.no-color")
	if err != nil {
		r.Errorf("csi-sanity: %v\n%s", err, out)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts []string
			LeafNodeText, State     string
			Failure                 struct{ Message string }
		}
	}
	testkit.Must(r, json.Unmarshal([]byte(k.Read(report)), &suites))
	count := map[string]int{}
	for _, s := range suites {
		for _, one := range s.SpecReports {
			if !slices.ContainsFunc(one.ContainerHierarchyTexts, func(text string) bool { return strings.HasPrefix(text, "Node Service") }) {
				continue // also skipped
			}
			if count[one.State]++; one.State != "passed" {
				r.Errorf("csi-sanity: %v %s: %s: %s", one.ContainerHierarchyTexts, one.LeafNodeText, one.State, one.Failure.Message)
			}
		}
	}
	if count["passed"] < 25 {
		r.Errorf("csi-sanity: %v", count)
	}
	fmt.Printf("REPORT: rbd: csi-sanity node %v\n", count)
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
		was := volumes + "/" + c.volume.GetVolumeContext()["imageName"]
		for _, args := range [][]string{{"deep", "cp", "--no-progress", was, was + "-copy"}, {"rm", "--no-progress", was}, {"mv", was + "-copy", was}} {
			testkit.Value(cluster.RBD(args...))(r)
		}
	}
	block.attach(n)
	ext4.attach(n)
	r.stopPlugin(n)
	r.nodes[n].Run("rm", "-r", state)
	r.startPlugin(n)
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
	r.nodes[n].Run("sh", "-c", `echo kept > "$0"/file && sync`, ext4.target())
	w := r.writer(n, block.target())
	r.awaitWrites(n, w, 100)
	testkit.Must(r, r.nodes[n].Guest.LosePower())
	<-w.Done()
	count := acknowledged(w)

	r.boot(n)
	r.startNode(n)
	for line := range strings.Lines(r.plugins[n].process.Log()) {
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
	r.check(n, block.target(), 1, count)
	if text := r.nodes[n].Read(ext4.target() + "/file"); text != "kept" {
		r.Errorf("the file has %q", text)
	}
	block.detach(n)
	ext4.detach(n)
	r.wantNothing(n)
	fmt.Printf("REPORT: rbd: power loss after %d acknowledged writes; all are there\n", count)
}
