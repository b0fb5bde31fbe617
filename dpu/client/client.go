// Package client asks the storage plugin of a DPU, any vendor's, on its socket:
// nvidia.storage.plugins.v1 in plain Go. It sends what it is given and returns
// what was answered; it decides nothing and repeats nothing.
package client

import (
	"context"

	"google.golang.org/grpc"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// Client is a connection to a plugin. It is made again when it was lost. It may
// be used by several goroutines.
type Client struct {
	socket   string
	conn     *grpc.ClientConn
	identity storagev1.IdentityServiceClient
	plugin   storagev1.StoragePluginServiceClient
}

// Info is who a plugin is.
type Info struct {
	Name     string
	Version  string
	Manifest map[string]string
}

// Capabilities are what a plugin announces.
type Capabilities struct {
	Block      bool // devices with volume mode Block
	Filesystem bool // devices with volume mode Filesystem
	Get        bool // GetDevice
	List       bool // ListDevices
	// All of them as the contract calls them, as TYPE_LIST_DEVICES, in the
	// plugin's order.
	All []string
}

// Create asks for a device. What is empty is not sent.
type Create struct {
	Volume   string
	Mode     request.Mode // empty is Filesystem
	Modes    []storagev1.AccessMode
	Contexts request.Contexts
}

// Device is what a plugin tells of one.
type Device struct {
	Mode     request.Mode // as the plugin writes it
	Modes    []storagev1.AccessMode
	Contexts request.Contexts
}

// Entry is a line of a plugin's list.
type Entry struct{ Volume, Device string }

// Dial connects to a plugin's socket, by its absolute path or as unix:///path.
// Errors: errs.Invalid for what is no such path, ErrNobody when nobody listens
// there.
func Dial(ctx context.Context, socket string) (*Client, error) {
	path, err := unixsock.ParseEndpoint(socket)
	if err != nil {
		return nil, errs.Errorf(errs.Invalid, "%w", err)
	}
	const largest = 32 << 20 // a page of a plugin that ignores max_entries
	conn, err := rpcdial.Connect(ctx, path, rpcdial.Listening(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)))
	if err != nil {
		return nil, nobody(ctx, path, "", err)
	}
	return &Client{
		socket: path, conn: conn,
		identity: storagev1.NewIdentityServiceClient(conn), plugin: storagev1.NewStoragePluginServiceClient(conn),
	}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Socket is the path on which the plugin is asked.
func (c *Client) Socket() string { return c.socket }

// Info asks a plugin who it is.
func (c *Client) Info(ctx context.Context) (Info, error) {
	a, err := call(ctx, c, "GetPluginInfo", c.identity.GetPluginInfo, &storagev1.GetPluginInfoRequest{})
	return Info{a.GetName(), a.GetVendorVersion(), a.GetManifest()}, err
}

// Probe asks a plugin whether it is ready. told is false where it leaves that
// open, which the node driver takes for not ready.
func (c *Client) Probe(ctx context.Context) (ready, told bool, err error) {
	a, err := call(ctx, c, "Probe", c.identity.Probe, &storagev1.ProbeRequest{})
	return a.GetReady().GetValue(), a.GetReady() != nil, err
}

// Capabilities asks a plugin what it serves.
func (c *Client) Capabilities(ctx context.Context) (Capabilities, error) {
	a, err := call(ctx, c, "StoragePluginGetCapabilities", c.plugin.StoragePluginGetCapabilities, &storagev1.StoragePluginGetCapabilitiesRequest{})
	var found Capabilities
	for _, one := range a.GetCapabilities() {
		of := one.GetRpc().GetType()
		found.All = append(found.All, of.String())
		switch of {
		case storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_BLOCK_DEVICE:
			found.Block = true
		case storagev1.StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_FS_DEVICE:
			found.Filesystem = true
		case storagev1.StoragePluginServiceCapability_RPC_TYPE_GET_DEVICE_STATS:
			found.Get = true
		case storagev1.StoragePluginServiceCapability_RPC_TYPE_LIST_DEVICES:
			found.List = true
		}
	}
	return found, err
}

// Provider asks a plugin for the name of its SNAP process. Empty is the
// contract's word for the default one.
func (c *Client) Provider(ctx context.Context) (string, error) {
	a, err := call(ctx, c, "GetSNAPProvider", c.plugin.GetSNAPProvider, &storagev1.GetSNAPProviderRequest{})
	return a.GetProviderName(), err
}

// Create asks for the device of a volume, and returns its name.
func (c *Client) Create(ctx context.Context, q Create) (device string, err error) {
	a, err := call(ctx, c, "CreateDevice", c.plugin.CreateDevice, &storagev1.CreateDeviceRequest{
		VolumeId: q.Volume, AccessModes: q.Modes, VolumeMode: string(q.Mode),
		PublishContext: q.Contexts.Publish, VolumeContext: q.Contexts.Volume, StorageParameters: q.Contexts.Storage,
	})
	return a.GetDeviceName(), err
}

// Delete asks to take a device away. nil: the volume has none of that name. An
// empty name is that of whatever device it has.
func (c *Client) Delete(ctx context.Context, volumeID, device string) error {
	_, err := call(ctx, c, "DeleteDevice", c.plugin.DeleteDevice, &storagev1.DeleteDeviceRequest{VolumeId: volumeID, DeviceName: device})
	return err
}

// Get asks for a device. codes.NotFound: there is none.
func (c *Client) Get(ctx context.Context, volumeID, device string) (Device, error) {
	a, err := call(ctx, c, "GetDevice", c.plugin.GetDevice, &storagev1.GetDeviceRequest{VolumeId: volumeID, DeviceName: device})
	return Device{
		Mode: request.Mode(a.GetVolumeMode()), Modes: a.GetAccessModes(),
		Contexts: request.Contexts{Publish: a.GetPublishContext(), Volume: a.GetVolumeContext(), Storage: a.GetStorageParameters()},
	}, err
}

// List asks for a page of the devices: at most max, 0 leaves that to the plugin;
// from where token says, which is the next of the page before. An empty next is
// the end. codes.Aborted: the token is not valid, or not any more.
func (c *Client) List(ctx context.Context, max int32, token string) (page []Entry, next string, err error) {
	a, err := call(ctx, c, "ListDevices", c.plugin.ListDevices, &storagev1.ListDevicesRequest{MaxEntries: max, StartingToken: token})
	for _, e := range a.GetEntries() {
		page = append(page, Entry{e.GetVolumeId(), e.GetDeviceName()})
	}
	return page, a.GetNextToken(), err
}
