package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// obstacle returns why the recorded node cannot be fenced with a proof, and no
// reason otherwise. It looks at the record and at what is protected now.
func (o Observation) obstacle() (reason, message string) {
	record := o.Remediation.Status.Record
	if len(o.Unavailable) > 0 {
		return ReasonSourceUnavailable, "not known yet: " + listed(o.Unavailable)
	}
	if !record.Machines[0].isKnown() {
		return ReasonMachineUnknown, "the Node object lacks machineID, systemUUID or bootID, has a placeholder of its vendor instead, or another Node has the same ids: a reboot could not be proved"
	}
	var problems []string
	for _, v := range record.Volumes {
		if _, why := o.Config.coverage(v); why != "" {
			problems = append(problems, fmt.Sprintf("%s (%s): %s", v.Name, v.rule(), explain[why]))
			if reason == "" {
				reason = why
			}
		}
	}
	if reason != "" {
		return reason, "volumes that no fence covers: " + listed(problems)
	}
	if reason, message = o.wrongAddress(record); reason != "" {
		return reason, message
	}
	for _, b := range o.neededBackends() {
		if !o.hasClient(b) {
			return ReasonNoClientRecord, fmt.Sprintf("no client of the node is recorded for backend %s, so that its addresses there are not known", b)
		}
	}
	return "", ""
}

// explain completes "NAME (DRIVER): ...".
var explain = map[string]string{
	ReasonDriverNotConfigured: "no coverage is configured for this driver and cluster",
	ReasonVolumeUnknown:       "only volumes of CSI drivers whose PersistentVolume exists can be fenced",
	ReasonHostPathVolume:      "the path can be a mount of shared storage; a rule with local: true says that it is on the node's own disks",
	ReasonNFSVolume:           "NFS volumes have no attachment that a fence would follow",
	ReasonInlineVolume:        "inline volumes have no attachment",
	ReasonNoVolumeAttachment:  "the driver has no VolumeAttachments",
	ReasonNoFenceService:      "the driver is configured without a backend",
	ReasonTargetOnNode:        "the lost node is the storage target of the volume",
}

// coverage returns the backend that fences a volume, empty if the volume is
// local to the node, or the reason why the volume is not covered.
func (c Config) coverage(v Volume) (backend, reason string) {
	rule, found := c.rule(v.rule(), v.Cluster)
	hasClusters := slices.ContainsFunc(c.Coverage, func(r Rule) bool { return r.Driver == v.rule() && r.Cluster != "" })
	switch {
	case v.NoObject && hasClusters: // which of the rules applies is not known
		return "", ReasonVolumeUnknown
	case v.OnNode:
		return "", ReasonTargetOnNode
	case found && rule.Local:
		return "", ""
	case v.Plugin == "nfs":
		return "", ReasonNFSVolume
	case v.Plugin == "hostPath" || v.Plugin == "local":
		return "", ReasonHostPathVolume
	case v.Plugin != "csi":
		return "", ReasonVolumeUnknown
	case v.Inline:
		return "", ReasonInlineVolume
	case v.NoAttachment:
		return "", ReasonNoVolumeAttachment
	case found && rule.Backend == "":
		return "", ReasonNoFenceService
	case !found || !slices.ContainsFunc(c.Backends, func(b Backend) bool { return b.Name == rule.Backend }):
		return "", ReasonDriverNotConfigured
	}
	return rule.Backend, ""
}

// rule returns the rule for the cluster, or else that for all clusters.
func (c Config) rule(driver, cluster string) (Rule, bool) {
	for _, of := range []string{cluster, ""} {
		for _, r := range c.Coverage {
			if r.Driver == driver && r.Cluster == of {
				return r, true
			}
		}
	}
	return Rule{}, false
}

// rule is the name by which rules find a volume: its driver, or its plugin.
func (v Volume) rule() string {
	if v.Plugin == "csi" {
		return v.Driver
	}
	return v.Plugin
}

// neededBackends are those of the recorded volumes, and those that have granted
// volumes to the node which the API server does not know any more.
func (o Observation) neededBackends() (all []string) {
	record := o.Remediation.Status.Record
	for _, v := range record.Volumes {
		if b, _ := o.Config.coverage(v); b != "" {
			all = append(all, b)
		}
	}
	for _, c := range record.Clients {
		if c.Source == FromGrant && c.Backend != "" {
			all = append(all, c.Backend)
		}
	}
	return union(all, nil, strings.Compare)
}

// hasClient: the addresses that the node uses for a backend are recorded. Those
// of the Node object count only where the configuration says so, those that a
// process of the node reports never do: it can omit what it writes from.
func (o Observation) hasClient(backend string) bool {
	nodeAddresses := o.backend(backend).NodeAddresses
	return slices.ContainsFunc(o.Remediation.Status.Record.Clients, func(c Client) bool {
		return len(c.Addresses) > 0 && (c.Backend == backend || c.Backend == "") && c.Source != FromReport && (c.Source != FromNode || nodeAddresses)
	})
}

func (o Observation) wrongAddress(record *Record) (reason, message string) {
	for _, c := range record.Clients {
		if len(c.Rejected) > 0 {
			return ReasonAddressRejected, fmt.Sprintf("%s of source %s is no single address", listed(c.Rejected), c.Source)
		}
		for _, a := range c.Addresses {
			if !isClientAddress(a) {
				return ReasonAddressRejected, fmt.Sprintf("%s of source %s is no address of a client", a, c.Source)
			}
			for _, p := range o.Protected {
				if p.Block.Contains(a) {
					return ReasonAddressProtected, fmt.Sprintf("%s of source %s is an address of %s", a, c.Source, p.Owner)
				}
			}
		}
	}
	return "", ""
}

func isClientAddress(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.Is4In6() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast()
}

func listed(all []string) string {
	const most = 10
	if len(all) > most {
		return strings.Join(all[:most], "; ") + fmt.Sprintf("; and %d more", len(all)-most)
	}
	return strings.Join(all, "; ")
}
