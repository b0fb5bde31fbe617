package spdk

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

// NVMeAddress is a path to a subsystem.
type NVMeAddress struct {
	Transport string `json:"trtype"`           // TCP, RDMA; NVDA_TCP in NVIDIA's fork
	Family    string `json:"adrfam,omitempty"` // IPv4, IPv6
	Address   string `json:"traddr"`
	Service   string `json:"trsvcid,omitempty"` // port
	SubNQN    string `json:"subnqn,omitempty"`
}

// NVMeAttach attaches a controller, or another path of it. Zero and nil fields
// are omitted: a release rejects unknown parameters, so the caller must know
// the supported ones.
type NVMeAttach struct {
	Name string `json:"name"`
	NVMeAddress
	HostNQN     string `json:"hostnqn,omitempty"`
	HostAddress string `json:"hostaddr,omitempty"` // source

	// Set all three or none; -1 is unlimited.
	LossTimeout    *int `json:"ctrlr_loss_timeout_sec,omitempty"`
	ReconnectDelay *int `json:"reconnect_delay_sec,omitempty"`
	FastIOFail     *int `json:"fast_io_fail_timeout_sec,omitempty"`

	Multipath    string `json:"multipath,omitempty"` // disable, failover, multipath
	IOQueues     int    `json:"num_io_queues,omitempty"`
	HeaderDigest bool   `json:"hdgst,omitempty"`
	DataDigest   bool   `json:"ddgst,omitempty"`
	MaxBdevs     int    `json:"max_bdevs,omitempty"`

	// Names of keys in the keyring; NVIDIA's fork of 24.01 takes a file as PSK.
	PSK           string `json:"psk,omitempty"`
	DHCHAPKey     string `json:"dhchap_key,omitempty"`
	DHCHAPCtrlKey string `json:"dhchap_ctrlr_key,omitempty"`
}

// AttachNVMe attaches a controller and returns the names of all its bdevs;
// namespaces can appear later. A silent target takes 10 s. An Unanswered call
// can still attach the controller. Exists: see SamePath and OtherName.
func (c *Client) AttachNVMe(ctx context.Context, a NVMeAttach) ([]string, error) {
	var names []string
	err := c.Call(ctx, "bdev_nvme_attach_controller", a, &names)
	return names, err
}

// DetachNVMe detaches a controller, or one of its paths, and removes its bdevs
// even if in use. NotFound: no such controller or (NoPath) path.
func (c *Client) DetachNVMe(ctx context.Context, name string, path *NVMeAddress) error {
	params := struct {
		byName
		*NVMeAddress
	}{byName{name}, path}
	return c.Do(ctx, "bdev_nvme_detach_controller", params)
}

// ResetNVMe reconnects a controller, and waits for the result. NotFound: no
// such controller.
func (c *Client) ResetNVMe(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_nvme_reset_controller", byName{name})
}

// ControllerState is the state of a path. The bdevs are listed in all states.
type ControllerState string

const (
	ControllerEnabled   ControllerState = "enabled"
	ControllerResetting ControllerState = "resetting"
	ControllerFailed    ControllerState = "failed"
	ControllerDelayed   ControllerState = "reconnect_is_delayed"
)

// NVMeController is an attached controller with all its paths.
type NVMeController struct {
	Name  string              `json:"name"`
	Paths []NVMeConnectedPath `json:"ctrlrs"`
}

// NVMeConnectedPath is a path with its state.
type NVMeConnectedPath struct {
	State        ControllerState `json:"state"`
	Address      NVMeAddress     `json:"trid"`
	ControllerID int             `json:"cntlid"`
	Host         struct {
		NQN     string `json:"nqn"`
		Address string `json:"addr"`
	} `json:"host"`
}

// NVMeController returns a controller. NotFound: no such controller.
func (c *Client) NVMeController(ctx context.Context, name string) (NVMeController, error) {
	if name == "" { // an empty name would return all controllers
		return NVMeController{}, errs.Errorf(errs.Invalid, "bdev_nvme_get_controllers: empty controller name")
	}
	var all []NVMeController
	if err := c.Call(ctx, "bdev_nvme_get_controllers", byName{name}, &all); err != nil {
		return NVMeController{}, err
	}
	if len(all) != 1 {
		return NVMeController{}, errs.Errorf(errs.Internal, "bdev_nvme_get_controllers: got %d controllers named %s, want 1", len(all), name)
	}
	return all[0], nil
}

func (c *Client) NVMeControllers(ctx context.Context) ([]NVMeController, error) {
	var all []NVMeController
	err := c.Call(ctx, "bdev_nvme_get_controllers", nil, &all)
	return all, err
}

// AddKeyFile adds a key from a file: an absolute path in the mount namespace of
// the process, whose user must own it and alone have access. Exists: the name
// is used. Denied: wrong owner or mode.
func (c *Client) AddKeyFile(ctx context.Context, name, path string) error {
	params := struct {
		byName
		Path string `json:"path"`
	}{byName{name}, path}
	return c.Do(ctx, "keyring_file_add_key", params)
}

// RemoveKey removes a key. NotFound: no such key.
func (c *Client) RemoveKey(ctx context.Context, name string) error {
	return c.Do(ctx, "keyring_file_remove_key", byName{name})
}

// KeyringEntry is a key of the process. A removed one is listed while a host or
// a controller refers to it, which it does not authenticate any more.
type KeyringEntry struct {
	Name    string `json:"name"`
	Removed bool   `json:"removed"`
}

// Keyring returns the keys of the process, without their content.
// UnknownMethod: the release is older than 24.05.
func (c *Client) Keyring(ctx context.Context) ([]KeyringEntry, error) {
	var all []KeyringEntry
	err := c.Call(ctx, "keyring_get_keys", nil, &all)
	return all, err
}
