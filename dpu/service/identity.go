package service

import (
	"context"

	"google.golang.org/protobuf/types/known/wrapperspb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

// GetPluginInfo returns the name and version of the plugin.
func (s *Server) GetPluginInfo(context.Context, *storagev1.GetPluginInfoRequest) (*storagev1.GetPluginInfoResponse, error) {
	return &storagev1.GetPluginInfoResponse{Name: s.config.Name, VendorVersion: s.config.Version, Manifest: s.config.Manifest}, nil
}

// Probe reports readiness. It fails only if the plugin is broken and should be
// restarted.
func (s *Server) Probe(ctx context.Context, _ *storagev1.ProbeRequest) (*storagev1.ProbeResponse, error) {
	ready, err := s.config.Devices.Ready(ctx)
	if err != nil {
		return nil, only(ctx, nil, err)
	}
	return &storagev1.ProbeResponse{Ready: wrapperspb.Bool(ready)}, nil
}

// StoragePluginGetCapabilities returns the kinds of devices that SNAP supports
// now, and always GetDevice and ListDevices.
func (s *Server) StoragePluginGetCapabilities(ctx context.Context, _ *storagev1.StoragePluginGetCapabilitiesRequest) (*storagev1.StoragePluginGetCapabilitiesResponse, error) {
	offer, err := s.config.Devices.Offer(ctx)
	if err != nil {
		return nil, only(ctx, nil, err)
	}
	var out storagev1.StoragePluginGetCapabilitiesResponse
	for _, c := range []struct {
		offered bool
		what    storagev1.StoragePluginServiceCapability_RPC_Type
	}{
		{offer.Block, storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_BLOCK_DEVICE},
		{offer.Filesystem, storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_FS_DEVICE},
		{true, storagev1.StoragePluginServiceCapability_RPC_TYPE_GET_DEVICE_STATS},
		{true, storagev1.StoragePluginServiceCapability_RPC_TYPE_LIST_DEVICES},
	} {
		if c.offered {
			out.Capabilities = append(out.Capabilities, &storagev1.StoragePluginServiceCapability{
				Type: &storagev1.StoragePluginServiceCapability_Rpc{Rpc: &storagev1.StoragePluginServiceCapability_RPC{Type: c.what}},
			})
		}
	}
	return &out, nil
}

// GetSNAPProvider returns the SNAP process that holds the devices. It never
// fails: the current node driver would continue with an empty name.
func (s *Server) GetSNAPProvider(context.Context, *storagev1.GetSNAPProviderRequest) (*storagev1.GetSNAPProviderResponse, error) {
	return &storagev1.GetSNAPProviderResponse{ProviderName: s.config.Provider}, nil
}
