package spdk

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

// NVMeAddress is one path to a subsystem.
type NVMeAddress struct {
	Transport string `json:"trtype"`           // TCP, RDMA; NVDA_TCP in NVIDIA's fork
	Family    string `json:"adrfam,omitempty"` // IPv4, IPv6
	Address   string `json:"traddr"`
	Service   string `json:"trsvcid,omitempty"` // the port
	SubNQN    string `json:"subnqn,omitempty"`
}

// NVMeAttach asks for a controller, or for one more path of one. What is zero
// or nil is left out, since a release that does not know a parameter refuses
// the call; what it knows is for the caller to find out.
type NVMeAttach struct {
	Name string `json:"name"`
	NVMeAddress
	HostNQN     string `json:"hostnqn,omitempty"`
	HostAddress string `json:"hostaddr,omitempty"` // to connect from

	// All three or none; -1 is for ever.
	LossTimeout    *int `json:"ctrlr_loss_timeout_sec,omitempty"`
	ReconnectDelay *int `json:"reconnect_delay_sec,omitempty"`
	FastIOFail     *int `json:"fast_io_fail_timeout_sec,omitempty"`

	Multipath    string `json:"multipath,omitempty"` // disable, failover, multipath
	IOQueues     int    `json:"num_io_queues,omitempty"`
	HeaderDigest bool   `json:"hdgst,omitempty"`
	DataDigest   bool   `json:"ddgst,omitempty"`
	MaxBdevs     int    `json:"max_bdevs,omitempty"`

	// Names of keys in the keyring; in the fork of 24.01 PSK is a file.
	PSK           string `json:"psk,omitempty"`
	DHCHAPKey     string `json:"dhchap_key,omitempty"`
	DHCHAPCtrlKey string `json:"dhchap_ctrlr_key,omitempty"`
}

// AttachNVMe attaches a controller and returns the names of all its bdevs, of
// which there may be none yet. A silent target takes the process 10 s. A call
// that ends Unanswered may attach it still. Exists: see SamePath and OtherName.
func (c *Client) AttachNVMe(ctx context.Context, a NVMeAttach) ([]string, error) {
	var names []string
	err := c.Call(ctx, "bdev_nvme_attach_controller", a, &names)
	return names, err
}

// DetachNVMe detaches a controller, or one path of it. Its bdevs go although
// they may be in use. NotFound: there is none, or (NoPath) not by that path.
func (c *Client) DetachNVMe(ctx context.Context, name string, path *NVMeAddress) error {
	params := struct {
		byName
		*NVMeAddress
	}{byName{name}, path}
	return c.Do(ctx, "bdev_nvme_detach_controller", params)
}

// ResetNVMe lets a controller connect again, also one that has failed. It
// returns when that is done. NotFound: there is none.
func (c *Client) ResetNVMe(ctx context.Context, name string) error {
	return c.Do(ctx, "bdev_nvme_reset_controller", byName{name})
}

// ControllerState is what a path's controller does. A bdev is listed in each.
type ControllerState string

// The states of a controller.
const (
	ControllerEnabled   ControllerState = "enabled"
	ControllerResetting ControllerState = "resetting"
	ControllerFailed    ControllerState = "failed"
	ControllerDelayed   ControllerState = "reconnect_is_delayed"
)

// NVMeController is what AttachNVMe made, with all its paths.
type NVMeController struct {
	Name  string              `json:"name"`
	Paths []NVMeConnectedPath `json:"ctrlrs"`
}

// NVMeConnectedPath is one path of a controller, and how it does.
type NVMeConnectedPath struct {
	State        ControllerState `json:"state"`
	Address      NVMeAddress     `json:"trid"`
	ControllerID int             `json:"cntlid"`
	Host         struct {
		NQN     string `json:"nqn"`
		Address string `json:"addr"`
	} `json:"host"`
}

// NVMeController returns one. NotFound: there is none of that name.
func (c *Client) NVMeController(ctx context.Context, name string) (NVMeController, error) {
	if name == "" { // which would be all
		return NVMeController{}, errs.Errorf(errs.Invalid, "bdev_nvme_get_controllers: the controller has no name")
	}
	var all []NVMeController
	if err := c.Call(ctx, "bdev_nvme_get_controllers", byName{name}, &all); err != nil {
		return NVMeController{}, err
	}
	if len(all) != 1 {
		return NVMeController{}, errs.Errorf(errs.Internal, "bdev_nvme_get_controllers: there are %d controllers named %s, not one", len(all), name)
	}
	return all[0], nil
}

// NVMeControllers returns all.
func (c *Client) NVMeControllers(ctx context.Context) ([]NVMeController, error) {
	var all []NVMeController
	err := c.Call(ctx, "bdev_nvme_get_controllers", nil, &all)
	return all, err
}

// AddKeyFile adds a key from a file: an absolute path in the mount namespace of
// the process, whose user owns the file and alone can read it. Exists: a key of
// that name exists. Denied: wrong owner or mode.
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
