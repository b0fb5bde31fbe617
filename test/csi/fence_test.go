package csi_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cleatproject/cleat/test/testkit"
)

// addons is the driver's socket for sidecars, called with the generated clients
// of the contract, as the csi-addons sidecar does.
type addons struct {
	*rig
	identity.IdentityClient
	fence.FenceControllerClient
}

func addonsFlags(dir string) []string {
	return []string{"--addons-endpoint", "unix://" + addonsSocket(dir), "--node-address", "192.0.2.10", "--node-address", "2001:db8::10"}
}

func addonsSocket(dir string) string { return filepath.Join(dir, "addons.sock") }

// addonsOf connects to the addons socket in a directory.
func (r *rig) addonsOf(dir string) addons {
	r.Helper()
	conn := testkit.Value(grpc.NewClient("unix://"+addonsSocket(dir), grpc.WithTransportCredentials(insecure.NewCredentials())))(r)
	r.Cleanup(func() { _ = conn.Close() })
	return addons{r, identity.NewIdentityClient(conn), fence.NewFenceControllerClient(conn)}
}

func (a addons) fence(ctx context.Context, blocks ...string) error {
	_, err := a.FenceClusterNetwork(ctx, &fence.FenceClusterNetworkRequest{Cidrs: cidrs(blocks)}, grpc.WaitForReady(true))
	return err
}

func (a addons) unfence(ctx context.Context, blocks ...string) error {
	_, err := a.UnfenceClusterNetwork(ctx, &fence.UnfenceClusterNetworkRequest{Cidrs: cidrs(blocks)}, grpc.WaitForReady(true))
	return err
}

func (a addons) list() []string {
	a.Helper()
	answer := testkit.Value(a.ListClusterFence(a.Context(), &fence.ListClusterFenceRequest{}, grpc.WaitForReady(true)))(a)
	return texts(answer.GetCidrs())
}

func cidrs(blocks []string) (all []*fence.CIDR) {
	for _, b := range blocks {
		all = append(all, &fence.CIDR{Cidr: b})
	}
	return all
}

func texts(blocks []*fence.CIDR) (all []string) {
	for _, b := range blocks {
		all = append(all, b.GetCidr())
	}
	return all
}

// announced returns the capabilities as words.
func (a addons) announced() string {
	a.Helper()
	answer := testkit.Value(a.GetCapabilities(a.Context(), &identity.GetCapabilitiesRequest{}))(a)
	var all []string
	for _, c := range answer.GetCapabilities() {
		switch c.GetType().(type) {
		case *identity.Capability_Service_:
			all = append(all, c.GetService().GetType().String())
		case *identity.Capability_NetworkFence_:
			all = append(all, c.GetNetworkFence().GetType().String())
		}
	}
	return strings.Join(all, " ")
}

// TestFencedNode: the clients of GetFenceClients can be fenced as returned, and
// then no volume is given to the node, also after restarts of the driver.
func TestFencedNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := newRig(t, append(addonsFlags(dir), "--controller-publish")...)
	a := r.addonsOf(dir)
	d, other := r.create("fenced", mounted("ext4")), r.create("staged-before", mounted("ext4"))
	publish := func(d *disk) error {
		answer, err := r.controller().ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: d.id, NodeId: nodeID, VolumeCapability: d.capability, VolumeContext: d.context,
		})
		if err == nil {
			d.grant = answer.GetPublishContext()
		}
		return err
	}
	testkit.Must(r, publish(other))
	other.attach()
	clients, err := a.GetFenceClients(t.Context(), &fence.GetFenceClientsRequest{})
	testkit.Must(r, err)
	if len(clients.GetClients()) != 1 || clients.GetClients()[0].GetId() != nodeID {
		t.Fatalf("clients: %v", clients)
	}
	blocks := texts(clients.GetClients()[0].GetAddresses())
	if !slices.Equal(blocks, []string{"192.0.2.10/32", "2001:db8::10/128"}) {
		t.Errorf("addresses: %v", blocks)
	}
	testkit.Must(r, publish(d)) // granted before, staged after
	testkit.Must(r, a.fence(t.Context(), blocks...))
	for _, again := range []func(){func() {}, r.kill, r.stop} {
		again()
		if r.process == nil {
			r.start()
		}
		if got := a.list(); !slices.Equal(got, blocks) {
			t.Errorf("fenced: %v", got)
		}
		r.refused(d.stage(), codes.FailedPrecondition, nodeID, "is fenced", "UnfenceClusterNetwork")
		r.refused(publish(d), codes.FailedPrecondition, nodeID, "UnfenceClusterNetwork")
		inline := other.publishRequest()
		inline.VolumeId, inline.TargetPath = "csi-inline", other.target+"-inline"
		inline.VolumeContext = map[string]string{"csi.storage.k8s.io/ephemeral": "true"}
		_, err = r.node().NodePublishVolume(t.Context(), inline)
		r.refused(err, codes.FailedPrecondition, nodeID)
	}
	// One of the two addresses suffices for a fence.
	testkit.Must(r, a.unfence(t.Context(), blocks[0]))
	r.refused(d.stage(), codes.FailedPrecondition, "2001:db8::10")
	// Unpublish, unstage and delete always work.
	other.detach()
	other.unpublishFromAll()
	testkit.Must(r, other.remove())
	testkit.Must(r, a.unfence(t.Context(), blocks[1]))
	testkit.Must(r, a.unfence(t.Context(), blocks...))
	testkit.Must(r, publish(d))
	d.attach().detach()
	d.unpublishFromAll()
	testkit.Must(r, d.remove())
}

// TestFenceOfTwoProcesses: the controller's fence reaches the node process,
// which refuses a grant older than the fence.
func TestFenceOfTwoProcesses(t *testing.T) {
	t.Parallel()
	dir, atController, atNode := t.TempDir(), t.TempDir(), t.TempDir()
	peer := "unix://" + filepath.Join(t.TempDir(), "peer.sock")
	c := makeRig(t, "controller", dir, append(addonsFlags(atController), "--services", "controller", "--controller-publish", "--fence-peer", "node="+peer)...)
	n := makeRig(t, "node", dir, append(addonsFlags(atNode), "--services", "node", "--controller-publish", "--fence-listen", peer)...)
	c.start()
	n.start()
	a, node := c.addonsOf(atController), n.addonsOf(atNode)
	if got := a.announced(); got != "CONTROLLER_SERVICE NETWORK_FENCE" {
		t.Errorf("the controller announces %s", got)
	}
	if got := node.announced(); got != "NODE_SERVICE GET_CLIENTS_TO_FENCE" {
		t.Errorf("the node announces %s", got)
	}
	n.refused(node.fence(t.Context(), "192.0.2.10/32"), codes.Unimplemented, "controller")
	_, err := a.GetFenceClients(t.Context(), &fence.GetFenceClientsRequest{})
	c.refused(err, codes.Unimplemented)

	d := c.create("two", mounted("ext4"))
	answer := testkit.Value(c.controller().ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: d.id, NodeId: nodeID, VolumeCapability: d.capability, VolumeContext: d.context,
	}))(c)
	d.grant = answer.GetPublishContext()
	there := d.onNode(n)
	n.kill()
	c.refused(a.fence(t.Context(), "192.0.2.10/32"), codes.Unavailable, "node", "repeat the call")
	n.start()
	testkit.Must(c, a.fence(t.Context(), "192.0.2.10/32"))
	n.refused(there.stage(), codes.FailedPrecondition, nodeID, "192.0.2.10")
	testkit.Must(c, a.unfence(t.Context(), "192.0.2.10/32"))
	there.attach().detach()
	d.unpublishFromAll()
	testkit.Must(c, d.remove())
}

// TestFenceAnnouncement: fencing is announced only if all processes get the
// fence.
func TestFenceAnnouncement(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags []string
		want  string
		why   string
	}{
		"all":              {nil, "CONTROLLER_SERVICE NETWORK_FENCE NODE_SERVICE GET_CLIENTS_TO_FENCE", ""},
		"controller alone": {[]string{"--services", "controller"}, "", "--fence-peer"},
		"per node":         {[]string{"--per-node"}, "NODE_SERVICE GET_CLIENTS_TO_FENCE", "--fence-peer"},
	} {
		dir := t.TempDir()
		a := newRig(t, append(addonsFlags(dir), c.flags...)...).addonsOf(dir)
		if got := a.announced(); got != c.want {
			t.Errorf("%s: announced %q", name, got)
		}
		if c.why != "" {
			a.refused(a.fence(t.Context(), "192.0.2.10/32"), codes.Unimplemented, c.why)
		}
		who := testkit.Value(a.GetIdentity(t.Context(), &identity.GetIdentityRequest{}))(a)
		if who.GetName() != "csi.cleat.dev" || who.GetVendorVersion() == "" {
			t.Errorf("%s: %v", name, who)
		}
		ready, err := a.Probe(t.Context(), &identity.ProbeRequest{})
		if err != nil || !ready.GetReady().GetValue() {
			t.Errorf("%s: probe %v, %v", name, ready, err)
		}
	}
}
