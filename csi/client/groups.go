package client

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
)

// Group is a set of snapshots cut at one moment. CSI has no list of groups, so
// only those that this memory made, or was told of, are known.
type Group struct {
	ID        string     `json:"id,omitempty"`
	Name      string     `json:"name"`
	Driver    string     `json:"driver"`
	State     string     `json:"state"` // as Volume's
	Ready     bool       `json:"ready"`
	Created   time.Time  `json:"created,omitzero"`
	Snapshots []Snapshot `json:"snapshots"`
}

type groupRecord struct {
	labels
	Phase      phase             `json:"phase"`
	Sources    []string          `json:"sources"` // volume ids
	Parameters map[string]string `json:"parameters,omitempty"`
	Ready      bool              `json:"ready,omitempty"`
	Created    time.Time         `json:"created"`
	Members    []snapshotRecord  `json:"members,omitempty"`
}

func (d *Driver) groups() shelf[groupRecord] {
	return shelf[groupRecord]{d.memory, store.Bucket[groupRecord]{Name: "groups"}}
}

func (r groupRecord) public() Group {
	g := Group{ID: r.ID, Name: r.Name, Driver: r.Driver, State: string(r.Phase), Ready: r.Ready, Created: r.Created}
	for _, m := range r.Members {
		g.Snapshots = append(g.Snapshots, m.public())
	}
	return g
}

// memberIDs is the list that delete and get must give.
func (r groupRecord) memberIDs() []string {
	var ids []string
	for _, m := range r.Members {
		ids = append(ids, m.ID)
	}
	return ids
}

// learnGroup takes over what the driver tells. What is remembered of a member's
// volume stays.
func (d *Driver) learnGroup(r *groupRecord, g *csi.VolumeGroupSnapshot, capabilities map[string]Capability) {
	r.ID, r.Ready = g.GetGroupSnapshotId(), g.GetReadyToUse()
	if g.GetCreationTime() != nil {
		r.Created = g.GetCreationTime().AsTime()
	}
	r.Members = nil
	for _, s := range g.GetSnapshots() {
		m := snapshotRecord{labels: labels{Driver: d.info.Name, Name: s.GetSnapshotId()}, Phase: ready, Capability: capabilities[s.GetSourceVolumeId()]}
		m.learn(s)
		m.Group = r.ID
		r.Members = append(r.Members, m)
	}
}

func (d *Driver) needGroups() error {
	if !d.offers.groups {
		return d.lacks("cut groups of snapshots", csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT)
	}
	return nil
}

// CreateGroup cuts snapshots of several volumes (names or ids) at one moment,
// or returns the group that the same request cut, and waits until it is ready.
func (d *Driver) CreateGroup(ctx context.Context, name string, sources []string, parameters map[string]string) (Group, error) {
	if err := d.needGroups(); err != nil {
		return Group{}, err
	}
	if name == "" || len(sources) == 0 {
		return Group{}, errs.Errorf(errs.Invalid, "a group needs a name and at least one volume")
	}
	record := groupRecord{labels: labels{Driver: d.info.Name, Name: name}, Phase: creating, Parameters: parameters, Created: now()}
	capabilities := map[string]Capability{}
	for _, source := range sources {
		v, err := d.usableVolume(ctx, source)
		if err != nil {
			return Group{}, err
		}
		record.Sources = append(record.Sources, v.ID)
		capabilities[v.ID] = v.Capability
	}
	slices.Sort(record.Sources) // the same request again, whatever the order
	record.Sources = slices.Compact(record.Sources)
	unlock, err := d.memory.lock(ctx, "group "+record.key())
	if err != nil {
		return Group{}, err
	}
	defer unlock()
	old, known, err := d.groups().find(ctx, d.info.Name, name)
	switch {
	case err != nil:
		return Group{}, err
	case known && old.Phase == deleting:
		return Group{}, errs.Errorf(errs.Precondition, "group %q is being deleted; delete it again to finish that, then create it again", name)
	case !known:
		if err := d.groups().put(ctx, record); err != nil {
			return Group{}, err
		}
	}
	if err := d.cutGroup(ctx, &record, capabilities); err != nil {
		if !known && isFinal(err) {
			return Group{}, joinPut(err, d.groups().drop(ctx, record))
		}
		return Group{}, err
	}
	return record.public(), nil
}

func (d *Driver) cutGroup(ctx context.Context, record *groupRecord, capabilities map[string]Capability) error {
	request := &csi.CreateVolumeGroupSnapshotRequest{
		Name: record.Name, SourceVolumeIds: record.Sources, Parameters: record.Parameters, Secrets: d.config.Secrets,
	}
	for pause := newPause(); ; {
		answer, err := call(ctx, d, "CreateVolumeGroupSnapshot", d.group.CreateVolumeGroupSnapshot, request)
		if err != nil {
			return stillWaiting(ctx, record.Phase, "group "+record.Name, err)
		}
		if answer.GetGroupSnapshot().GetGroupSnapshotId() == "" {
			return errs.Errorf(errs.Internal, "driver %s created group %q without an id", d.info.Name, record.Name)
		}
		d.learnGroup(record, answer.GetGroupSnapshot(), capabilities)
		record.Phase = ready
		if err := d.groups().keep(ctx, *record); err != nil {
			return err
		}
		if record.Ready {
			return nil
		}
		if err := d.pauseFor(ctx, pause, "group "+record.Name); err != nil {
			return err
		}
	}
}

// DeleteGroup removes a group with its snapshots. NotFound: nobody knows it.
func (d *Driver) DeleteGroup(ctx context.Context, ref string) error {
	if err := d.needGroups(); err != nil {
		return err
	}
	record, err := d.findGroup(ctx, ref)
	if err != nil {
		return err
	}
	unlock, err := d.memory.lock(ctx, "group "+record.key())
	if err != nil {
		return err
	}
	defer unlock()
	if record.Phase == creating {
		if err := d.cutGroup(ctx, &record, nil); isFinal(err) {
			return d.groups().drop(ctx, record)
		} else if err != nil {
			return err
		}
	}
	was := record.Phase
	record.Phase = deleting
	if err := d.groups().put(ctx, record); err != nil {
		return err
	}
	_, err = call(ctx, d, "DeleteVolumeGroupSnapshot", d.group.DeleteVolumeGroupSnapshot, &csi.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: record.ID, SnapshotIds: record.memberIDs(), Secrets: d.config.Secrets,
	})
	if err != nil && codeOf(err) != codes.NotFound {
		if isFinal(err) {
			record.Phase = was
			return joinPut(err, d.groups().keep(ctx, record))
		}
		return err
	}
	return d.groups().drop(ctx, record)
}

// Groups lists the groups that are remembered, by name.
func (d *Driver) Groups(ctx context.Context) ([]Group, error) {
	records, err := d.groups().all(ctx, d.info.Name)
	if err != nil {
		return nil, err
	}
	var out []Group
	for _, r := range records {
		out = append(out, r.public())
	}
	slices.SortFunc(out, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// ShowGroup returns one group by its name or id, as the driver has it now.
func (d *Driver) ShowGroup(ctx context.Context, ref string) (Group, error) {
	record, err := d.findGroup(ctx, ref)
	if err != nil || record.ID == "" {
		return record.public(), err
	}
	if err := d.needGroups(); err != nil {
		return Group{}, err
	}
	answer, err := call(ctx, d, "GetVolumeGroupSnapshot", d.group.GetVolumeGroupSnapshot, &csi.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: record.ID, SnapshotIds: record.memberIDs(), Secrets: d.config.Secrets,
	})
	switch {
	case err == nil:
		capabilities := map[string]Capability{}
		for _, m := range record.Members {
			capabilities[m.Source] = m.Capability
		}
		d.learnGroup(&record, answer.GetGroupSnapshot(), capabilities)
	case codeOf(err) == codes.NotFound && record.Phase == ready:
		record.Phase = StateMissing
	default:
		return Group{}, err
	}
	g := record.public()
	return g, d.nameSources(ctx, g.Snapshots)
}

// findGroup finds a group by name or id, in the memory: a driver cannot look
// one up without the list of its members.
func (d *Driver) findGroup(ctx context.Context, ref string) (groupRecord, error) {
	record, ok, err := d.groups().find(ctx, d.info.Name, ref)
	if err == nil && !ok {
		err = errs.Errorf(errs.NotFound, "no group with the name or id %q is remembered in %s", ref, d.config.StateDir)
	}
	return record, err
}

// member finds a snapshot among the members of remembered groups.
func (d *Driver) member(ctx context.Context, id string) (snapshotRecord, bool, error) {
	records, err := d.groups().all(ctx, d.info.Name)
	for _, r := range records {
		for _, m := range r.Members {
			if id != "" && m.ID == id {
				return m, true, err
			}
		}
	}
	return snapshotRecord{}, false, err
}
