package csi

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// FormatNodeID returns the node id of a deployment with MultiNode,
// NAME@ADDR[,ADDR]: the controller learns from it which addresses a fence of
// the node covers. ParseNodeID accepts exactly these ids.
func FormatNodeID(c volume.Client) (string, error) {
	addrs := slices.Clone(c.Addrs)
	for i, a := range addrs {
		if addrs[i] = a.Unmap(); !isClientAddr(addrs[i]) {
			return "", invalidf("%s is not an address by which the storage can reach node %s", a, errs.Quote(c.Node))
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	var words []string
	for _, a := range slices.Compact(addrs) {
		words = append(words, a.String())
	}
	id := c.Node + "@" + strings.Join(words, ",")
	switch {
	case checkNodeName(c.Node) != nil:
		return "", checkNodeName(c.Node)
	case len(words) == 0:
		return "", errs.Errorf(errs.Precondition, "node %s has no known address, which its node id needs; set --node-address", errs.Quote(c.Node))
	case len(id) > maxNodeID:
		return "", invalidf("node id %s has %d bytes, at most %d are allowed; set fewer addresses with --node-address", errs.Quote(id), len(id), maxNodeID)
	}
	return id, nil
}

// ParseNodeID parses a node id of FormatNodeID. NotFound: it has another form.
func ParseNodeID(id string) (volume.Client, error) {
	name, list, _ := strings.Cut(id, "@")
	c := volume.Client{Node: name}
	for word := range strings.SplitSeq(list, ",") {
		if a, err := netip.ParseAddr(word); err == nil {
			c.Addrs = append(c.Addrs, a)
		}
	}
	if canonical, err := FormatNodeID(c); err != nil || canonical != id {
		return volume.Client{}, errs.Errorf(errs.NotFound, "node %s is not known: a node id of this driver has the form NAME@ADDRESS[,ADDRESS], as NodeGetInfo returns it", errs.Quote(id))
	}
	return c, nil
}

// parseNodeID is ParseNodeID, and accepts plain names with PlainNodeIDs.
func (d Deployment) parseNodeID(id string) (volume.Client, error) {
	if d.PlainNodeIDs && checkNodeName(id) == nil {
		return volume.Client{Node: id}, nil
	}
	return ParseNodeID(id)
}

// nodeName returns the name in a node id, which identifies the node: its
// addresses can change.
func (d Deployment) nodeName(id string) string {
	if !d.MultiNode {
		return id
	}
	if name, _, _ := strings.Cut(id, "@"); name != "" {
		return name
	}
	return id
}

func checkNodeName(name string) error {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '@' || r == ',' || r == 0x7f || r == 0xfffd }) {
		return invalidf("node name %s is empty or contains a blank, a control character, @ or a comma; use the name of the Kubernetes node", errs.Quote(name))
	}
	return nil
}

func isClientAddr(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast()
}
