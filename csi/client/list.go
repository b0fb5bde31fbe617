package client

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
)

// pageSize is what is asked for; a driver may answer less.
const pageSize = 500

// List returns the driver's volumes together with what is remembered of them,
// by name. A driver without LIST_VOLUMES lists what is remembered.
func (d *Driver) List(ctx context.Context) ([]Volume, error) {
	records, err := d.volumes().all(ctx, d.info.Name)
	if err != nil {
		return nil, err
	}
	var entries []*csi.ListVolumesResponse_Entry
	canList := d.offers.controller[csi.ControllerServiceCapability_RPC_LIST_VOLUMES]
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
	for _, r := range records {
		v := r.public()
		if e := byID[r.ID]; e != nil {
			v.refresh(e.GetVolume(), e.GetStatus().GetPublishedNodeIds())
			delete(byID, r.ID)
		} else if canList && r.Phase == ready {
			v.State = StateMissing
		}
		out = append(out, v)
	}
	for _, e := range byID {
		v := d.foreign(e.GetVolume()).public()
		v.Nodes = e.GetStatus().GetPublishedNodeIds()
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	return out, d.addHealth(ctx, out)
}

// addHealth fills in conditions where the driver lists them.
func (d *Driver) addHealth(ctx context.Context, volumes []Volume) error {
	if !d.offers.controller[csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH] {
		return nil
	}
	entries, err := pages(func(token string) ([]*csi.VolumeHealth, string, error) {
		answer, err := callPage(ctx, d, "ControllerListVolumeHealth", d.controller.ControllerListVolumeHealth,
			&csi.ControllerListVolumeHealthRequest{MaxEntries: pageSize, StartingToken: token, Secrets: d.config.Secrets})
		return answer.GetEntries(), answer.GetNextToken(), err
	})
	if err != nil {
		return err
	}
	for _, e := range entries {
		for i := range volumes {
			if volumes[i].ID == e.GetVolumeId() {
				volumes[i].Conditions = conditions(e)
			}
		}
	}
	return nil
}

func (d *Driver) listVolumes(ctx context.Context) ([]*csi.ListVolumesResponse_Entry, error) {
	return pages(func(token string) ([]*csi.ListVolumesResponse_Entry, string, error) {
		answer, err := callPage(ctx, d, "ListVolumes", d.controller.ListVolumes, &csi.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
		return answer.GetEntries(), answer.GetNextToken(), err
	})
}

// pages reads a list to its end. A driver that has forgotten its token is
// asked from the start again, once; one that answers with the same token for
// ever is an error, not an endless loop.
func pages[E any](page func(token string) ([]E, string, error)) ([]E, error) {
	var all []E
	seen, restarted := map[string]bool{}, false
	for token := ""; ; {
		entries, next, err := page(token)
		if codeOf(err) == codes.Aborted && token != "" && !restarted {
			all, seen, token, restarted = nil, map[string]bool{}, "", true
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
		if next == "" {
			return all, nil
		}
		if seen[next] {
			return nil, errs.Errorf(errs.Internal, "the driver's list does not end: token %q came twice", next)
		}
		seen[next] = true
		token = next
	}
}

// Show returns one volume by its name or id.
func (d *Driver) Show(ctx context.Context, ref string) (Volume, error) {
	record, err := d.findVolume(ctx, ref)
	if err != nil {
		return Volume{}, err
	}
	v := record.public()
	if record.ID == "" {
		return v, nil
	}
	now, nodes, err := d.look(ctx, record.ID)
	switch {
	case errors.Is(err, errs.NotFound) && record.Phase == ready:
		v.State = StateMissing
		return v, nil
	case errors.Is(err, errs.NotFound), errors.Is(err, errs.Unsupported):
		return v, nil
	case err != nil:
		return Volume{}, err
	}
	v.refresh(now, nodes)
	v.Conditions, err = d.Health(ctx, ref)
	if errors.Is(err, errs.Unsupported) {
		err = nil
	}
	return v, err
}

// look asks the driver for one volume. Unsupported: it cannot tell.
func (d *Driver) look(ctx context.Context, id string) (*csi.Volume, []string, error) {
	switch {
	case d.offers.controller[csi.ControllerServiceCapability_RPC_GET_VOLUME]:
		answer, err := call(ctx, d, "ControllerGetVolume", d.controller.ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: id})
		return answer.GetVolume(), answer.GetStatus().GetPublishedNodeIds(), err
	case d.offers.controller[csi.ControllerServiceCapability_RPC_LIST_VOLUMES]:
		entries, err := d.listVolumes(ctx)
		if err != nil {
			return nil, nil, err
		}
		for _, e := range entries {
			if e.GetVolume().GetVolumeId() == id {
				return e.GetVolume(), e.GetStatus().GetPublishedNodeIds(), nil
			}
		}
		return nil, nil, d.unknown("volume", id)
	}
	return nil, nil, d.lacks("look a volume up", csi.ControllerServiceCapability_RPC_GET_VOLUME)
}

// findVolume finds a volume by name or id: in the memory, else at the driver.
func (d *Driver) findVolume(ctx context.Context, ref string) (volumeRecord, error) {
	record, ok, err := d.volumes().find(ctx, d.info.Name, ref)
	if err != nil || ok {
		return record, err
	}
	if ref == "" {
		return record, errs.Errorf(errs.Invalid, "the name or id of the volume is empty")
	}
	v, _, err := d.look(ctx, ref)
	switch {
	case errors.Is(err, errs.Unsupported):
		return record, errs.Errorf(errs.NotFound, "no volume with the name or id %q is remembered in %s, and driver %s cannot look it up: it announces neither GET_VOLUME nor LIST_VOLUMES",
			ref, d.config.StateDir, d.info.Name)
	case errors.Is(err, errs.NotFound), errors.Is(err, errs.Invalid):
		return record, d.unknown("volume", ref)
	case err != nil:
		return record, err
	}
	return d.foreign(v), nil
}

// usable refuses a volume that a cut-off call left half-way.
func (r volumeRecord) usable() error {
	if r.Phase == creating || r.Phase == deleting {
		return errs.Errorf(errs.Precondition, "volume %s is %s: that call was interrupted, repeat it first", r.Name, r.Phase)
	}
	return nil
}

// usableVolume finds a volume that other objects may be made from.
func (d *Driver) usableVolume(ctx context.Context, ref string) (volumeRecord, error) {
	record, err := d.findVolume(ctx, ref)
	if err == nil {
		err = record.usable()
	}
	return record, err
}
