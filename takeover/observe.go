package takeover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/cleatproject/cleat/internal/kubeobject"
	"github.com/cleatproject/cleat/internal/machineid"
	"github.com/cleatproject/cleat/takeover/plan"
)

type unstructuredObject = unstructured.Unstructured

// observation is what package plan decides from, with the objects that actions
// change.
type observation struct {
	plan.Observation
	remediation *unstructuredObject
	node        *unstructuredObject // nil if it does not exist
}

// errChanged: an object changed during the observation.
var errChanged = errors.New("the remediation changed while the cluster was read")

// observe reads all of it, uncached, between two reads of the remediation. It
// returns nil if that does not exist.
func (c *Controller) observe(ctx context.Context, name string, lease plan.Lease) (*observation, error) {
	o := &observation{Observation: plan.Observation{Lease: lease, Config: c.config.Coverage.planConfig()}}
	var err error
	o.remediation, err = kubeobject.Get[unstructuredObject](ctx, c.config.Client, Resource, c.config.Namespace, name)
	if err != nil || o.remediation == nil {
		return nil, err
	}
	r, err := decode(o.remediation)
	if err != nil {
		return nil, err
	}
	o.Remediation = r.observed()
	if !lease.Held || r.Status.Term < lease.Term {
		return o, nil // a leader writes its term first, whatever else there is
	}
	for _, read := range []func(context.Context, *observation) error{c.readOthers, c.readNodes, c.readAPIServer, c.readVolumes, c.readBackends} {
		if err := read(ctx, o); err != nil {
			return nil, err
		}
	}
	slices.Sort(o.Unavailable)
	o.Now = time.Now()
	again, err := kubeobject.Get[unstructuredObject](ctx, c.config.Client, Resource, c.config.Namespace, name)
	switch {
	case err != nil:
		return nil, err
	case again == nil || again.GetUID() != o.remediation.GetUID() || again.GetResourceVersion() != o.remediation.GetResourceVersion():
		return nil, errChanged
	}
	return o, nil
}

func (c *Controller) readOthers(ctx context.Context, o *observation) error {
	all, err := list(ctx, c.config.Client, c.config.Namespace)
	o.Others = nil
	for _, r := range all {
		if string(r.UID) != o.Remediation.UID {
			o.Others = append(o.Others, plan.Other{Name: r.Name, UID: string(r.UID), Created: r.CreationTimestamp.Time, Node: r.Node(), Status: r.Status})
		}
	}
	return err
}

// readNodes reads the node, its addresses, and those of the other nodes.
func (c *Controller) readNodes(ctx context.Context, o *observation) error {
	name := o.Remediation.Node
	nodes, err := kubeobject.List[unstructuredObject](ctx, c.config.Client, nodeResource, "", metav1.ListOptions{})
	if err != nil {
		return err
	}
	type identity struct{ machineID, systemUUID string }
	have := map[identity]int{}
	for _, u := range nodes {
		n, err := kubeobject.Convert[corev1.Node](u)
		if err != nil {
			return err
		}
		have[identity{n.Status.NodeInfo.MachineID, n.Status.NodeInfo.SystemUUID}]++
		client := plan.Client{Machine: n.Name, Source: plan.FromNode}
		for _, a := range n.Status.Addresses {
			if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
				continue
			}
			addr, err := netip.ParseAddr(a.Address)
			if err != nil {
				client.Rejected = append(client.Rejected, a.Address)
				continue
			}
			client.Addresses = append(client.Addresses, addr.Unmap())
		}
		if n.Name == name {
			o.node, o.Node = u, c.planNode(n)
			o.addClient(client)
			continue
		}
		for _, a := range client.Addresses {
			o.protect(a, "node "+n.Name)
		}
	}
	if n := o.Node; n != nil && have[identity{n.Machine.MachineID, n.Machine.SystemUUID}] > 1 { // as of cloned machines: they name none
		n.Machine.MachineID, n.Machine.SystemUUID = "", ""
	}
	for node, addresses := range c.config.Coverage.StorageAddresses {
		if node == name {
			o.addClient(plan.Client{Machine: name, Source: plan.FromStorageNetwork, Addresses: addresses})
			continue
		}
		for _, a := range addresses {
			o.protect(a, "node "+node+" on a storage network")
		}
	}
	for _, dpu := range c.config.Coverage.DPUs[name] {
		o.DPUs = append(o.DPUs, plan.Machine{Name: dpu})
	}
	return nil
}

// uniqueID returns an id, or "" if it is a placeholder, which other machines can
// have too.
func uniqueID(id string) string {
	if !machineid.IsUnique(id) {
		return ""
	}
	return id
}

func (c *Controller) planNode(n *corev1.Node) *plan.Node {
	info := n.Status.NodeInfo
	_, excluded := n.Labels[excludeLabel]
	p := &plan.Node{
		UID:           string(n.UID),
		Machine:       plan.Machine{Name: n.Name, MachineID: uniqueID(info.MachineID), SystemUUID: uniqueID(info.SystemUUID), BootID: info.BootID},
		Excluded:      excluded || slices.Contains(c.config.Coverage.ExcludedNodes, n.Name),
		Unschedulable: n.Spec.Unschedulable,
	}
	for _, condition := range n.Status.Conditions {
		p.Ready = p.Ready || condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	}
	for i := range n.Spec.Taints {
		if t := &n.Spec.Taints[i]; t.Key == outOfService && t.Effect == corev1.TaintEffectNoExecute {
			p.OutOfService = &t.Value
		}
	}
	// An unreadable claim is ignored: it decides nothing about fences.
	_ = json.Unmarshal([]byte(n.Annotations[claimAnnotation]), &p.Claim)
	return p
}

// readAPIServer protects the API server and what the configuration names.
func (c *Controller) readAPIServer(ctx context.Context, o *observation) error {
	slice, err := kubeobject.Get[discoveryv1.EndpointSlice](ctx, c.config.Client, sliceResource, metav1.NamespaceDefault, "kubernetes")
	if err != nil {
		return err
	}
	found := false
	if slice != nil {
		for _, e := range slice.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					o.protect(a, "API server")
					found = true
				}
			}
		}
	}
	if !found {
		o.Unavailable = append(o.Unavailable, "EndpointSlice default/kubernetes has no address of the API server")
	}
	for _, p := range c.config.Coverage.Protected {
		block, err := parseBlock(p.Block)
		if err != nil {
			return err
		}
		o.Protected = append(o.Protected, plan.Protected{Block: block, Owner: p.Owner})
	}
	return nil
}

// readBackends asks all backends for their clients, and those of the intent for
// the fences of this remediation, at the same time.
func (c *Controller) readBackends(ctx context.Context, o *observation) error {
	type answer struct {
		clients []Client
		servers []netip.Addr
		err     error
		back    *plan.ReadBack
	}
	answers := make([]answer, len(c.config.Coverage.Backends))
	var running sync.WaitGroup
	for i, b := range c.config.Coverage.Backends {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			a, backend := &answers[i], c.config.Backends[b.Name]
			var serversErr error
			a.servers, serversErr = backend.Servers(ctx)
			a.clients, a.err = backend.Clients(ctx)
			a.err = errors.Join(a.err, serversErr)
			a.back = c.readBack(ctx, o, b.Name, backend)
		})
	}
	running.Wait()
	for i, b := range c.config.Coverage.Backends {
		a := answers[i]
		if a.err != nil {
			o.Unavailable = append(o.Unavailable, fmt.Sprintf("backend %s: %s", b.Name, a.err))
		}
		for _, server := range a.servers {
			o.protect(server, "backend "+b.Name)
		}
		for _, client := range a.clients {
			o.addRecorded(b.Name, client)
		}
		if a.back != nil {
			o.ReadBacks = append(o.ReadBacks, *a.back)
		}
	}
	return nil
}

// readBack returns nil for a backend that is not in the intent.
func (c *Controller) readBack(ctx context.Context, o *observation, name string, backend Backend) *plan.ReadBack {
	intent := o.Remediation.Status.Intent
	if intent == nil {
		return nil
	}
	at := slices.IndexFunc(intent.Targets, func(t plan.Target) bool { return t.Backend == name })
	if at < 0 {
		return nil
	}
	back := &plan.ReadBack{Backend: name, Intent: intent.Digest, At: time.Now()}
	found, err := backend.ReadBack(ctx, o.Remediation.UID, intent.Targets[at].Addresses)
	back.Held, back.Recorded, back.Lifted, back.Evidence = found.Held, found.Recorded, found.Lifted, found.Evidence
	back.Missing, back.FenceBlocked, back.UnfenceBlocked = found.Missing, found.FenceBlocked, found.UnfenceBlocked
	if err != nil {
		back.Err = err.Error()
	}
	return back
}

// addRecorded adds the record of a client: of this node or its DPUs, or of
// another one, whose addresses are protected.
func (o *observation) addRecorded(backend string, c Client) {
	mine := c.Node == o.Remediation.Node || slices.ContainsFunc(o.DPUs, func(m plan.Machine) bool { return m.Name == c.Node })
	if !mine {
		for _, a := range c.Addresses {
			o.protect(a, fmt.Sprintf("client %s of backend %s", c.Node, backend))
		}
		return
	}
	if c.Reported {
		o.addClient(plan.Client{Machine: c.Node, Source: plan.FromReport, Backend: backend, Addresses: c.Addresses, Rejected: c.Rejected})
		return
	}
	o.addClient(plan.Client{Machine: c.Node, Source: plan.FromGrant, Backend: backend, Addresses: slices.Concat(c.Addresses, c.Former)})
}

// addClient keeps the order and the form that records are compared in.
func (o *observation) addClient(c plan.Client) {
	c.Addresses = slices.Clone(c.Addresses)
	for i, a := range c.Addresses {
		c.Addresses[i] = a.Unmap().WithZone("")
	}
	slices.SortFunc(c.Addresses, netip.Addr.Compare)
	c.Addresses = slices.Compact(c.Addresses)
	slices.Sort(c.Rejected)
	if len(c.Addresses)+len(c.Rejected) > 0 {
		o.Clients = append(o.Clients, c)
	}
}

func (o *observation) protect(a netip.Addr, owner string) {
	o.Protected = append(o.Protected, plan.Protected{Block: single(a.Unmap().WithZone("")), Owner: owner})
}
