// Package client calls the storage plugin of a DPU, from any vendor, on its
// socket: nvidia.storage.plugins.v1 with plain Go types, without retries.
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

// Client is a connection to a plugin, reestablished when lost. It is safe for
// concurrent use.
type Client struct {
	socket   string
	conn     *grpc.ClientConn
	identity storagev1.IdentityServiceClient
	plugin   storagev1.StoragePluginServiceClient
}

// Info identifies a plugin.
type Info struct {
	Name     string
	Version  string
	Manifest map[string]string
}

// Capabilities are announced by a plugin.
type Capabilities struct {
	Block      bool // devices with volume mode Block
	Filesystem bool // devices with volume mode Filesystem
	Get        bool
	List       bool
	// All names in the contract, such as TYPE_LIST_DEVICES, in the plugin's
	// order.
	All []string
}

// Create is a request for a device. Empty fields are not sent.
type Create struct {
	Volume   string
	Mode     request.Mode // empty means Filesystem
	Modes    []storagev1.AccessMode
	Contexts request.Contexts
}

// Device is the response of GetDevice.
type Device struct {
	Mode     request.Mode
	Modes    []storagev1.AccessMode
	Contexts request.Contexts
}

// Entry is an entry of ListDevices.
type Entry struct{ Volume, Device string }

// Dial connects to a socket, given as absolute path or unix:///path. Errors:
// errs.Invalid for an invalid path, ErrNotServed if no plugin listens.
func Dial(ctx context.Context, socket string) (*Client, error) {
	path, err := unixsock.ParseEndpoint(socket)
	if err != nil {
		return nil, errs.Errorf(errs.Invalid, "%w", err)
	}
	const largest = 32 << 20 // for plugins that ignore max_entries
	conn, err := rpcdial.Connect(ctx, path, rpcdial.Listening(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)))
	if err != nil {
		return nil, unreachable(ctx, path, "", err)
	}
	return &Client{
		socket: path, conn: conn,
		identity: storagev1.NewIdentityServiceClient(conn), plugin: storagev1.NewStoragePluginServiceClient(conn),
	}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Socket returns the path of the plugin's socket.
func (c *Client) Socket() string { return c.socket }

// Info calls GetPluginInfo.
func (c *Client) Info(ctx context.Context) (Info, error) {
	a, err := call(ctx, c, "GetPluginInfo", c.identity.GetPluginInfo, &storagev1.GetPluginInfoRequest{})
	return Info{a.GetName(), a.GetVendorVersion(), a.GetManifest()}, err
}

// Probe calls Probe. known is false if the plugin leaves ready unset, which the
// node driver treats as not ready.
func (c *Client) Probe(ctx context.Context) (ready, known bool, err error) {
	a, err := call(ctx, c, "Probe", c.identity.Probe, &storagev1.ProbeRequest{})
	return a.GetReady().GetValue(), a.GetReady() != nil, err
}

// Capabilities calls StoragePluginGetCapabilities.
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

// Provider calls GetSNAPProvider. An empty name means the default SNAP process.
func (c *Client) Provider(ctx context.Context) (string, error) {
	a, err := call(ctx, c, "GetSNAPProvider", c.plugin.GetSNAPProvider, &storagev1.GetSNAPProviderRequest{})
	return a.GetProviderName(), err
}

// Create calls CreateDevice, and returns the device name.
func (c *Client) Create(ctx context.Context, q Create) (device string, err error) {
	a, err := call(ctx, c, "CreateDevice", c.plugin.CreateDevice, &storagev1.CreateDeviceRequest{
		VolumeId: q.Volume, AccessModes: q.Modes, VolumeMode: string(q.Mode),
		PublishContext: q.Contexts.Publish, VolumeContext: q.Contexts.Volume, StorageParameters: q.Contexts.Storage,
	})
	return a.GetDeviceName(), err
}

// Delete calls DeleteDevice. It succeeds if the volume has no such device. An
// empty name matches any device.
func (c *Client) Delete(ctx context.Context, volumeID, device string) error {
	_, err := call(ctx, c, "DeleteDevice", c.plugin.DeleteDevice, &storagev1.DeleteDeviceRequest{VolumeId: volumeID, DeviceName: device})
	return err
}

// Get calls GetDevice. codes.NotFound: the device does not exist.
func (c *Client) Get(ctx context.Context, volumeID, device string) (Device, error) {
	a, err := call(ctx, c, "GetDevice", c.plugin.GetDevice, &storagev1.GetDeviceRequest{VolumeId: volumeID, DeviceName: device})
	return Device{
		Mode: request.Mode(a.GetVolumeMode()), Modes: a.GetAccessModes(),
		Contexts: request.Contexts{Publish: a.GetPublishContext(), Volume: a.GetVolumeContext(), Storage: a.GetStorageParameters()},
	}, err
}

// List calls ListDevices: at most max entries (0: the plugin decides) from
// token, the next of the previous page. An empty next marks the last page.
// codes.Aborted: the token is invalid or has expired.
func (c *Client) List(ctx context.Context, max int32, token string) (page []Entry, next string, err error) {
	a, err := call(ctx, c, "ListDevices", c.plugin.ListDevices, &storagev1.ListDevicesRequest{MaxEntries: max, StartingToken: token})
	for _, e := range a.GetEntries() {
		page = append(page, Entry{e.GetVolumeId(), e.GetDeviceName()})
	}
	return page, a.GetNextToken(), err
}
