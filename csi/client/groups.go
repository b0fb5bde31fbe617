package client

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
)

// Group is a set of snapshots of one moment. CSI cannot list groups, so only
// those created here are known.
type Group struct {
	Object
	Ready     bool       `json:"ready"`
	Created   time.Time  `json:"created,omitzero"`
	Snapshots []Snapshot `json:"snapshots"`
}

type groupRecord struct {
	Group
	Sources    []string          `json:"sources"` // volume ids
	Parameters map[string]string `json:"parameters,omitempty"`
}

// refreshGroup updates g from now; how a member's source is used stays known.
func (d *Driver) refreshGroup(g *Group, now *csi.VolumeGroupSnapshot) {
	g.ID, g.Ready = now.GetGroupSnapshotId(), now.GetReadyToUse()
	if now.GetCreationTime() != nil {
		g.Created = now.GetCreationTime().AsTime()
	}
	before := g.Snapshots
	g.Snapshots = nil
	for _, member := range now.GetSnapshots() {
		s := d.unnamed(member, StateReady)
		s.Group = g.ID
		for _, b := range before {
			if b.Source == s.Source {
				s.Capability = b.Capability
			}
		}
		g.Snapshots = append(g.Snapshots, s)
	}
}

const groupSnapshots = csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT

// CreateGroup creates snapshots of several volumes (names or ids) at one
// moment, and waits until they are ready. It is idempotent.
func (d *Driver) CreateGroup(ctx context.Context, name string, sources []string, parameters map[string]string) (Group, error) {
	if err := d.need("create groups of snapshots", groupSnapshots); err != nil {
		return Group{}, err
	}
	if name == "" || len(sources) == 0 {
		return Group{}, errs.Errorf(errs.Invalid, "a group needs a name and at least one volume")
	}
	n := &groupRecord{Parameters: parameters, Group: Group{
		Object: Object{Driver: d.info.Name, Name: name, State: StateCreating}, Created: time.Now().UTC(),
	}}
	var members []Snapshot // source and capability
	for _, source := range sources {
		v, err := usable(d.findVolume(ctx, source))
		if err != nil {
			return Group{}, err
		}
		n.Sources = append(n.Sources, v.ID)
		members = append(members, Snapshot{Source: v.ID, Capability: v.Capability})
	}
	slices.Sort(n.Sources) // equal requests in any order
	n.Sources = slices.Compact(n.Sources)
	err := createObject(ctx, d, n, func(*groupRecord, bool) error {
		n.Snapshots = members
		return d.takeGroup(ctx, n)
	})
	return n.Group, err
}

func (d *Driver) takeGroup(ctx context.Context, n *groupRecord) error {
	request := &csi.CreateVolumeGroupSnapshotRequest{Name: n.Name, SourceVolumeIds: n.Sources, Parameters: n.Parameters, Secrets: d.config.Secrets}
	return d.awaitReadyToUse(ctx, n, func() (bool, error) {
		answer, err := d.group.CreateVolumeGroupSnapshot(ctx, request)
		if err != nil {
			return false, err
		}
		if answer.GetGroupSnapshot().GetGroupSnapshotId() == "" {
			return false, errs.Errorf(errs.Internal, "driver %s created group %q without an id", d.info.Name, n.Name)
		}
		d.refreshGroup(&n.Group, answer.GetGroupSnapshot())
		n.State = StateReady
		return n.Ready, d.state.put(n)
	})
}

// memberIDs: delete and get need the list.
func (n *groupRecord) memberIDs() (ids []string) {
	for _, s := range n.Snapshots {
		ids = append(ids, s.ID)
	}
	return ids
}

// DeleteGroup deletes a group with its snapshots. NotFound: no record.
func (d *Driver) DeleteGroup(ctx context.Context, ref string) error {
	if err := d.need("delete groups of snapshots", groupSnapshots); err != nil {
		return err
	}
	return locked(ctx, d, d.findGroup, ref, func(n *groupRecord) error {
		return deleteObject(d, n, func() error { return d.takeGroup(ctx, n) }, func() error {
			_, err := d.group.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{
				GroupSnapshotId: n.ID, SnapshotIds: n.memberIDs(), Secrets: d.config.Secrets,
			})
			return err
		})
	})
}

// Groups lists groups created here, by name.
func (d *Driver) Groups(context.Context) ([]Group, error) {
	records, err := storedAll[*groupRecord](d.state, d.info.Name)
	var out []Group
	for _, n := range records {
		out = append(out, n.Group)
	}
	slices.SortFunc(out, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	return out, err
}

// ShowGroup returns a group's current state, by name or id.
func (d *Driver) ShowGroup(ctx context.Context, ref string) (Group, error) {
	n, err := d.findGroup(ctx, ref)
	if err != nil {
		return Group{}, err
	}
	if n.ID == "" {
		return n.Group, nil
	}
	if err := d.need("look groups of snapshots up", groupSnapshots); err != nil {
		return Group{}, err
	}
	answer, err := d.group.GetVolumeGroupSnapshot(ctx, &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: n.ID, SnapshotIds: n.memberIDs(), Secrets: d.config.Secrets,
	})
	if err == nil {
		d.refreshGroup(&n.Group, answer.GetGroupSnapshot())
	} else if err := n.notShown(err); err != nil {
		return Group{}, err
	}
	return n.Group, d.nameSources(n.Snapshots)
}

// findGroup finds a group by name or id among those created here: a driver
// cannot look one up without the list of its members.
func (d *Driver) findGroup(_ context.Context, ref string) (*groupRecord, error) {
	all, err := storedAll[*groupRecord](d.state, d.info.Name)
	if err != nil {
		return nil, err
	}
	n, ok := byRef(all, ref)
	if !ok {
		return nil, errs.Errorf(errs.NotFound, "%s has no group with the name or id %q", d.config.StateDir, ref)
	}
	return n, nil
}
