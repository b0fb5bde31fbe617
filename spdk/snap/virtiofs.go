package snap

import "context"

// transport is the one that SNAP has for virtio-fs.
const transport = "DOCA"

// Transport is the way of virtio-fs devices to the host.
type Transport struct {
	Name     string    `json:"name"`
	State    string    `json:"state"` // started, or not
	Managers []Manager `json:"managers"`
}

// Manager is an RDMA device that emulates PCI functions.
type Manager struct {
	Name string `json:"name"` // mlx5_0
}

// FSFunctions are the functions of a manager.
type FSFunctions struct {
	Manager   string       `json:"manager"`
	Functions []FSFunction `json:"Function List"`
}

// FSFunction is an emulated virtio-fs function.
type FSFunction struct {
	PCI  string `json:"pci_address"`
	VUID string `json:"vuid"`
	Type string `json:"function_type"`
}

// FSDevice is a virtio-fs device.
type FSDevice struct {
	Name   string `json:"name"`
	State  string `json:"state"` // running, or not
	Fsdev  string `json:"fsdev"`
	Tag    string `json:"tag"` // what the host mounts
	Queues int    `json:"num_request_queues"`
}

// Transports returns all that there are.
func (s SNAP) Transports(ctx context.Context) ([]Transport, error) {
	return call[[]Transport](ctx, s, "virtio_fs_get_transports", nil)
}

// CreateTransport makes the transport that all devices share.
func (s SNAP) CreateTransport(ctx context.Context) error {
	return s.RPC.Do(ctx, "virtio_fs_transport_create", map[string]any{"transport_name": transport})
}

// StartTransport starts it, once its managers are there.
func (s SNAP) StartTransport(ctx context.Context) error {
	return s.RPC.Do(ctx, "virtio_fs_transport_start", map[string]any{"transport_name": transport})
}

// PossibleManagers returns the RDMA devices that could emulate.
func (s SNAP) PossibleManagers(ctx context.Context) ([]Manager, error) {
	return call[[]Manager](ctx, s, "virtio_fs_doca_get_possible_managers", nil)
}

// Managers returns those that do.
func (s SNAP) Managers(ctx context.Context) ([]Manager, error) {
	return call[[]Manager](ctx, s, "virtio_fs_doca_get_managers", nil)
}

// CreateManager lets an RDMA device emulate.
func (s SNAP) CreateManager(ctx context.Context, manager string) error {
	return s.RPC.Do(ctx, "virtio_fs_doca_manager_create", map[string]any{"manager": manager})
}

// FSFunctions returns all functions, by manager.
func (s SNAP) FSFunctions(ctx context.Context) ([]FSFunctions, error) {
	return call[[]FSFunctions](ctx, s, "virtio_fs_doca_get_functions", nil)
}

// CreateFSFunction makes a function and returns its VUID.
func (s SNAP) CreateFSFunction(ctx context.Context, manager string) (string, error) {
	const method = "virtio_fs_doca_function_create"
	vuid, err := call[string](ctx, s, method, map[string]any{"manager": manager})
	return named(method, "VUID", vuid, err)
}

// DestroyFSFunction removes one.
func (s SNAP) DestroyFSFunction(ctx context.Context, manager, vuid string) error {
	return s.RPC.Do(ctx, "virtio_fs_doca_function_destroy", map[string]any{"manager": manager, "vuid": vuid})
}

// FSDevices returns all devices.
func (s SNAP) FSDevices(ctx context.Context) ([]FSDevice, error) {
	return call[[]FSDevice](ctx, s, "virtio_fs_get_devices", nil)
}

// NewFSDevice is a virtio-fs device to be made of a file system device.
type NewFSDevice struct {
	Name      string `json:"dev_name"`
	Fsdev     string `json:"fsdev"`
	Tag       string `json:"tag"`
	Queues    int    `json:"num_request_queues"`
	QueueSize int    `json:"queue_size"` // entries
	// Platform is that of the host's driver, as x86_64. Releases that do not
	// know the parameter refuse it.
	Platform string `json:"driver_platform,omitempty"`
}

// CreateFSDevice makes a device. It is on no function yet.
func (s SNAP) CreateFSDevice(ctx context.Context, d NewFSDevice) error {
	params := struct {
		Transport string `json:"transport_name"`
		NewFSDevice
	}{transport, d}
	return s.RPC.Do(ctx, "virtio_fs_device_create", params)
}

// PlaceFSDevice puts a device onto a function.
func (s SNAP) PlaceFSDevice(ctx context.Context, device, manager, vuid string) error {
	return s.RPC.Do(ctx, "virtio_fs_doca_device_modify", map[string]any{"dev_name": device, "manager": manager, "vuid": vuid})
}

// StartFSDevice starts one.
func (s SNAP) StartFSDevice(ctx context.Context, device string) error {
	return s.RPC.Do(ctx, "virtio_fs_device_start", map[string]any{"dev_name": device})
}

// StopFSDevice stops one.
func (s SNAP) StopFSDevice(ctx context.Context, device string) error {
	return s.RPC.Do(ctx, "virtio_fs_device_stop", map[string]any{"dev_name": device})
}

// DestroyFSDevice removes one that is stopped.
func (s SNAP) DestroyFSDevice(ctx context.Context, device string) error {
	return s.RPC.Do(ctx, "virtio_fs_device_destroy", map[string]any{"dev_name": device})
}

// PlugFSDevice shows one to the host, and waits until that is done.
func (s SNAP) PlugFSDevice(ctx context.Context, device string) error {
	return s.RPC.Do(ctx, "virtio_fs_doca_device_hotplug", map[string]any{"dev_name": device, "wait_for_done": true})
}

// UnplugFSDevice takes it away from the host, and waits until that is done.
func (s SNAP) UnplugFSDevice(ctx context.Context, device string) error {
	return s.RPC.Do(ctx, "virtio_fs_doca_device_hotunplug", map[string]any{"dev_name": device, "wait_for_done": true})
}
