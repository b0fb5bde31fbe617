package service

import (
	"context"
	"errors"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
)

// CreateDevice creates the device of a volume.
func (s *Server) CreateDevice(ctx context.Context, r *storagev1.CreateDeviceRequest) (*storagev1.CreateDeviceResponse, error) {
	q, err := request.ParseCreate(r)
	if err != nil {
		return nil, s.unserved(ctx, err)
	}
	name, err := s.config.Devices.Create(ctx, q)
	switch {
	case errors.Is(err, plugin.ErrUnsupported):
		return nil, s.unserved(ctx, err)
	case err != nil:
		return nil, only(ctx, nil, err)
	}
	return &storagev1.CreateDeviceResponse{DeviceName: name}, nil
}

// unserved returns UNIMPLEMENTED, which applies to the whole method, only if
// SNAP supports no devices at all; an unsupported volume mode is
// FAILED_PRECONDITION.
func (s *Server) unserved(ctx context.Context, why error) error {
	offer, err := s.config.Devices.Offer(ctx)
	if err == nil && offer == (plugin.Offer{}) {
		return errs.Errorf(errs.Unsupported, "CreateDevice: %w: it has neither the methods for block devices nor those for file systems; use a SNAP image that has them", plugin.ErrUnsupported)
	}
	if errors.Is(why, plugin.ErrUnsupported) {
		return errs.Errorf(errs.Precondition, "%v; StoragePluginGetCapabilities lists the supported devices: use the other volume_mode, or a SNAP image that has the methods", why)
	}
	return only(ctx, nil, why)
}

// DeleteDevice does not depend on what SNAP supports now: the record must also
// be removed after SNAP was replaced.
func (s *Server) DeleteDevice(ctx context.Context, r *storagev1.DeleteDeviceRequest) (*storagev1.DeleteDeviceResponse, error) {
	if id := r.GetVolumeId(); id != "" && request.CheckVolume(id) != nil {
		return &storagev1.DeleteDeviceResponse{}, nil // cannot have a device
	}
	d, err := request.ParseDelete(r)
	if err == nil {
		err = s.config.Devices.Delete(ctx, d)
	}
	if err != nil {
		return nil, only(ctx, nil, err)
	}
	return &storagev1.DeleteDeviceResponse{}, nil
}

// GetDevice returns how a device was created, if SNAP holds it.
func (s *Server) GetDevice(ctx context.Context, r *storagev1.GetDeviceRequest) (*storagev1.GetDeviceResponse, error) {
	q, err := request.ParseGet(r)
	if err != nil {
		return nil, err
	}
	d, err := s.config.Devices.Get(ctx, q)
	if err != nil {
		return nil, only(ctx, plugin.ErrNotFound, err)
	}
	return &storagev1.GetDeviceResponse{
		AccessModes: d.Modes, VolumeMode: string(d.Mode),
		PublishContext: d.Contexts.Publish, VolumeContext: d.Contexts.Volume, StorageParameters: d.Contexts.Storage,
	}, nil
}

// ListDevices returns a page of the devices.
func (s *Server) ListDevices(ctx context.Context, r *storagev1.ListDevicesRequest) (*storagev1.ListDevicesResponse, error) {
	p, err := request.ParsePage(r)
	if err != nil {
		return nil, err
	}
	page, more, err := s.config.Devices.List(ctx, p)
	if err != nil {
		return nil, only(ctx, nil, err)
	}
	out := &storagev1.ListDevicesResponse{}
	for _, d := range page {
		out.Entries = append(out.Entries, &storagev1.ListDevicesResponse_Entry{VolumeId: d.Volume, DeviceName: d.Name})
	}
	if more && len(page) > 0 {
		out.NextToken = request.Token(page[len(page)-1].Volume)
	}
	return out, nil
}
