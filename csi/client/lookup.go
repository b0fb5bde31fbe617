package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// knownVolumes have a record or an attachment.
func (d *Driver) knownVolumes() ([]*volumeRecord, error) {
	records, err := storedAll[*volumeRecord](d.state, d.info.Name)
	if err != nil {
		return nil, err
	}
	attachments, err := storedAll[*attachment](d.state, d.info.Name)
	if err != nil {
		return nil, err
	}
	for _, a := range attachments {
		i := slices.IndexFunc(records, func(n *volumeRecord) bool { return n.ID == a.Volume })
		if i < 0 {
			i = len(records)
			records = append(records, d.foreign(&csi.Volume{VolumeId: a.Volume, VolumeContext: a.Context}))
		}
		records[i].attachment = a
	}
	slices.SortStableFunc(records, func(a, b *volumeRecord) int { // own ones are found first
		switch {
		case a.Foreign == b.Foreign:
			return 0
		case b.Foreign:
			return -1
		}
		return 1
	})
	return records, nil
}

// foreign describes a volume that was not created here.
func (d *Driver) foreign(v *csi.Volume) *volumeRecord {
	id := v.GetVolumeId()
	n := &volumeRecord{Volume: Volume{
		Object:  Object{ID: id, Name: cmp.Or(v.GetVolumeContext()[access.KeyName], id), Driver: d.info.Name, State: StateForeign},
		Created: volume.IDTime(id),
	}, Foreign: true}
	n.refresh(v, nil)
	return n
}

func (v *Volume) refresh(now *csi.Volume, nodes []string) {
	v.Nodes = nodes
	if now.GetCapacityBytes() > 0 {
		v.Size = now.GetCapacityBytes()
	}
	if source := sourceOf(now.GetContentSource()); source != (Source{}) {
		v.Source = source
	}
	if len(now.GetVolumeContext()) > 0 {
		v.Context = now.GetVolumeContext()
	}
	if v.State == StateForeign {
		v.Topology = segments(now.GetAccessibleTopology())
	}
}

func (n *volumeRecord) view() Volume {
	v := n.Volume
	if n.attachment != nil {
		v.Staging = n.attachment.Staging
		for _, t := range n.attachment.Targets {
			v.Targets = append(v.Targets, t.Target)
		}
	}
	return v
}

// findVolume finds a volume for a call: by name or id here, else by its id at
// the driver. The error for the name of a foreign volume has its id.
func (d *Driver) findVolume(ctx context.Context, ref string) (*volumeRecord, error) {
	n, err := d.lookUpVolume(ctx, ref)
	if errors.Is(err, errs.NotFound) {
		if named, nameErr := d.foreignNamed(ctx, ref); nameErr == nil && named != nil {
			err = d.foreignError(ref, named)
		}
	}
	return n, err
}

// foreignError refuses a name that another client gave: it can name another
// volume when the call is repeated.
func (d *Driver) foreignError(name string, n *volumeRecord) error {
	return errs.Errorf(errs.NotFound, "no volume %q was created by these commands; driver %s has a foreign volume with that name: use its ID, %s", name, d.info.Name, n.ID)
}

func (d *Driver) lookUpVolume(ctx context.Context, ref string) (*volumeRecord, error) {
	if ref == "" {
		return nil, errs.Errorf(errs.Invalid, "the name or id of the volume is empty")
	}
	known, err := d.knownVolumes()
	if err != nil {
		return nil, err
	}
	if n, ok := byRef(known, ref); ok {
		return n, nil
	}
	v, _, err := d.getVolume(ctx, ref)
	if err != nil {
		return nil, d.notFound(err, "volume", ref, "GET_VOLUME nor LIST_VOLUMES")
	}
	return d.foreign(v), nil
}

// foreignNamed returns the volume that List shows under a name; nil without one.
func (d *Driver) foreignNamed(ctx context.Context, name string) (*volumeRecord, error) {
	if !d.announced[csi.ControllerServiceCapability_RPC_LIST_VOLUMES] {
		return nil, nil
	}
	entries, err := d.listVolumes(ctx)
	if err != nil {
		return nil, err
	}
	var found *volumeRecord
	for _, e := range entries {
		n := d.foreign(e.GetVolume())
		switch {
		case n.Name != name:
		case found != nil:
			return nil, errs.Errorf(errs.Invalid, "driver %s has several volumes with the name %q, such as %s and %s: use the ID", d.info.Name, name, found.ID, n.ID)
		default:
			found = n
		}
	}
	return found, nil
}

// errNoLookup is in the errors of objects that have no record, of a driver that does
// not report whether it has them.
var errNoLookup = errors.New("cannot look it up")

func (d *Driver) notFound(err error, kind, ref, calls string) error {
	switch {
	case errors.Is(err, errs.Unsupported):
		return errs.Errorf(errs.Unsupported, "%s has no %s with the name or id %q, and driver %s %w: it announces neither %s, so it is not known whether the %s exists",
			d.config.StateDir, kind, ref, d.info.Name, errNoLookup, calls, kind)
	case errors.Is(err, errs.NotFound), errors.Is(err, errs.Invalid):
		return errs.Errorf(errs.NotFound, "driver %s has no %s with the name or id %q", d.info.Name, kind, ref)
	}
	return err
}

// getVolume asks the driver for one volume. Unsupported: it has no call for
// that.
func (d *Driver) getVolume(ctx context.Context, id string) (*csi.Volume, []string, error) {
	switch {
	case d.announced[csi.ControllerServiceCapability_RPC_GET_VOLUME]:
		answer, err := d.controller.ControllerGetVolume(ctx, &csi.ControllerGetVolumeRequest{VolumeId: id})
		return answer.GetVolume(), answer.GetStatus().GetPublishedNodeIds(), err
	case d.announced[csi.ControllerServiceCapability_RPC_LIST_VOLUMES]:
		entries, err := d.listVolumes(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range entries {
			if e.GetVolume().GetVolumeId() == id {
				return e.GetVolume(), e.GetStatus().GetPublishedNodeIds(), nil
			}
		}
		return nil, nil, errs.Errorf(errs.NotFound, "driver %s does not list volume %q", d.info.Name, id)
	}
	return nil, nil, d.need("look a volume up", csi.ControllerServiceCapability_RPC_GET_VOLUME)
}

func (d *Driver) listVolumes(ctx context.Context) ([]*csi.ListVolumesResponse_Entry, error) {
	return pages(func(token string) ([]*csi.ListVolumesResponse_Entry, string, error) {
		answer, err := d.controller.ListVolumes(ctx, &csi.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
		return answer.GetEntries(), answer.GetNextToken(), err
	})
}

// List returns the driver's volumes (LIST_VOLUMES) and those with a record, by
// name.
func (d *Driver) List(ctx context.Context) ([]Volume, error) {
	known, err := d.knownVolumes()
	if err != nil {
		return nil, err
	}
	var entries []*csi.ListVolumesResponse_Entry
	canList := d.announced[csi.ControllerServiceCapability_RPC_LIST_VOLUMES]
	if canList {
		if entries, err = d.listVolumes(ctx); err != nil {
			return nil, err
		}
	}
	byID := map[string]*csi.ListVolumesResponse_Entry{}
	for _, e := range entries {
		byID[e.GetVolume().GetVolumeId()] = e
	}
	var out []Volume
	for _, n := range known {
		v := n.view()
		if e := byID[n.ID]; e != nil {
			v.refresh(e.GetVolume(), e.GetStatus().GetPublishedNodeIds())
			delete(byID, n.ID)
		} else if canList && n.State == StateReady {
			v.State = StateMissing
		}
		out = append(out, v)
	}
	for _, e := range byID {
		v := d.foreign(e.GetVolume()).Volume
		v.Nodes = e.GetStatus().GetPublishedNodeIds()
		out = append(out, v)
	}
	err = d.addPods(ctx, out)
	slices.SortFunc(out, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	return out, errors.Join(err, d.addHealth(ctx, out))
}

// addHealth adds conditions that the driver lists.
func (d *Driver) addHealth(ctx context.Context, volumes []Volume) error {
	if !d.announced[csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH] {
		return nil
	}
	entries, err := pages(func(token string) ([]*csi.VolumeHealth, string, error) {
		answer, err := d.controller.ControllerListVolumeHealth(ctx, &csi.ControllerListVolumeHealthRequest{MaxEntries: pageSize, StartingToken: token, Secrets: d.config.Secrets})
		return answer.GetEntries(), answer.GetNextToken(), err
	})
	if err != nil {
		return err
	}
	byID := map[string]*csi.VolumeHealth{}
	for _, e := range entries {
		byID[e.GetVolumeId()] = e
	}
	for i := range volumes {
		volumes[i].Conditions = conditions(byID[volumes[i].ID].GetHealthStatuses())
	}
	return nil
}

// Show returns a volume by name or id, also by the name that List shows of one
// that was not created here. Calls that change a volume need its id: the repeat
// of a deletion must not hit another volume with that name.
func (d *Driver) Show(ctx context.Context, ref string) (Volume, error) {
	n, err := d.lookUpVolume(ctx, ref)
	if errors.Is(err, errs.NotFound) {
		if named, nameErr := d.foreignNamed(ctx, ref); named != nil || nameErr != nil {
			n, err = named, nameErr
		}
	}
	if err != nil {
		return Volume{}, err
	}
	v := n.view()
	if n.ID == "" {
		return v, nil
	}
	now, nodes, err := d.getVolume(ctx, n.ID)
	if err != nil {
		err = v.notShown(err)
		return v, err
	}
	v.refresh(now, nodes)
	if v.Conditions, err = d.Health(ctx, n.ID); errors.Is(err, errs.Unsupported) {
		err = nil
	}
	shown := []Volume{v}
	err = errors.Join(err, d.addPods(ctx, shown))
	return shown[0], err
}

// notShown handles the driver's refusal to show an object that is known here.
func (o *Object) notShown(err error) error {
	switch {
	case errors.Is(err, errs.NotFound):
		if o.State == StateReady {
			o.State = StateMissing
		}
		return nil
	case errors.Is(err, errs.Unsupported):
		return nil
	}
	return err
}

// Usage is the usage of a volume, in bytes or inodes.
type Usage struct {
	Unit      string `json:"unit"` // BYTES or INODES
	Total     int64  `json:"total"`
	Used      int64  `json:"used"`
	Available int64  `json:"available"`
}

// Stats returns the usage of an attached volume.
func (d *Driver) Stats(ctx context.Context, ref string) ([]Usage, error) {
	if err := d.need("report the usage of a volume", csi.NodeServiceCapability_RPC_GET_VOLUME_STATS); err != nil {
		return nil, err
	}
	n, err := usable(d.findVolume(ctx, ref))
	if err != nil {
		return nil, err
	}
	path, staging := n.attachment.published()
	if path == "" {
		return nil, errs.Errorf(errs.Precondition, "volume %s is not attached, so its usage is not known; attach it first", n.Name)
	}
	answer, err := d.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: n.ID, VolumePath: path, StagingTargetPath: staging})
	if err != nil {
		return nil, err
	}
	var out []Usage
	for _, u := range answer.GetUsage() {
		out = append(out, Usage{Unit: u.GetUnit().String(), Total: u.GetTotal(), Used: u.GetUsed(), Available: u.GetAvailable()})
	}
	return out, nil
}

// Capacity returns the space left for volumes with these parameters on this
// node.
func (d *Driver) Capacity(ctx context.Context, capability Capability, parameters map[string]string) (volume.Capacity, error) {
	if err := d.need("report its capacity", csi.ControllerServiceCapability_RPC_GET_CAPACITY); err != nil {
		return volume.Capacity{}, err
	}
	if err := d.needCapability(capability); err != nil {
		return volume.Capacity{}, err
	}
	request := &csi.GetCapacityRequest{VolumeCapabilities: []*csi.VolumeCapability{capability.message()}, Parameters: parameters}
	if here := d.topologyRequirement(); here != nil {
		request.AccessibleTopology = here.GetPreferred()[0]
	}
	answer, err := d.controller.GetCapacity(ctx, request)
	if err != nil {
		return volume.Capacity{}, err
	}
	return volume.Capacity{
		Available: answer.GetAvailableCapacity(), Maximum: answer.GetMaximumVolumeSize().GetValue(), Minimum: answer.GetMinimumVolumeSize().GetValue(),
	}, nil
}
