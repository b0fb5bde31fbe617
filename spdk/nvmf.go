package spdk

import (
	"context"

	"github.com/cleatproject/cleat/errs"
)

// Subsystem is an NVMe subsystem that the process exports.
type Subsystem struct {
	NQN          string          `json:"nqn"`
	Listeners    []Listener      `json:"listen_addresses"`
	AllowAnyHost bool            `json:"allow_any_host"`
	Hosts        []AllowedHost   `json:"hosts"`
	Serial       string          `json:"serial_number"`
	Model        string          `json:"model_number"`
	Namespaces   []SubsystemDisk `json:"namespaces"`
}

// Listener is an address at which hosts connect to a subsystem. Only Secure sets
// TLS.
type Listener struct {
	NVMeAddress
	TLS bool `json:"-"`
}

// AllowedHost is a host on the list of a subsystem.
type AllowedHost struct {
	NQN string `json:"nqn"`
	HostKeys
}

// HostKeys names the entries of the keyring that authenticate a host, and the
// target to it, with DH-HMAC-CHAP, and the key of its TLS; empty: none. Releases
// before 24.05 ignore those of DH-HMAC-CHAP in AddHost. A TLS key is read at that
// time, and only by transports that exist. Only Secure sets TLS.
type HostKeys struct {
	Host   string `json:"dhchap_key,omitempty"`
	Target string `json:"dhchap_ctrlr_key,omitempty"`
	TLS    string `json:"psk,omitempty"`
}

// SubsystemDisk is a namespace of a subsystem. Bdev is its name, the UUID of an
// lvol, also if it was added by its alias.
type SubsystemDisk struct {
	ID    uint32 `json:"nsid"`
	Bdev  string `json:"bdev_name"`
	UUID  string `json:"uuid"`
	NGUID string `json:"nguid"`
}

// HasHost reports whether a host is on the list of the subsystem.
func (s Subsystem) HasHost(nqn string) bool {
	_, found := s.Keys(nqn)
	return found
}

// Keys returns the keys of a host on the list.
func (s Subsystem) Keys(nqn string) (keys HostKeys, found bool) {
	for _, h := range s.Hosts {
		if h.NQN == nqn {
			return h.HostKeys, true
		}
	}
	return HostKeys{}, false
}

// Subsystems returns all subsystems, also the discovery subsystem.
func (c *Client) Subsystems(ctx context.Context) ([]Subsystem, error) {
	var all []Subsystem
	err := c.Call(ctx, "nvmf_get_subsystems", nil, &all)
	return all, err
}

// Subsystem returns a subsystem. NotFound: no such subsystem.
func (c *Client) Subsystem(ctx context.Context, nqn string) (Subsystem, error) {
	var all []Subsystem
	if err := c.Call(ctx, "nvmf_get_subsystems", byNQN{nqn}, &all); err != nil {
		return Subsystem{}, err
	}
	if len(all) != 1 {
		return Subsystem{}, errs.Errorf(errs.Internal, "nvmf_get_subsystems: got %d subsystems with NQN %s, want 1", len(all), nqn)
	}
	return all[0], nil
}

type byNQN struct {
	NQN string `json:"nqn"`
}

// CreateTransport creates a transport, TCP or RDMA. Exists: it exists.
// BadParams: the process is built without it.
func (c *Client) CreateTransport(ctx context.Context, name string) error {
	return c.Do(ctx, "nvmf_create_transport", struct {
		Type string `json:"trtype"`
	}{name})
}

// SubsystemCreate describes a new subsystem. It admits no host.
type SubsystemCreate struct {
	NQN           string `json:"nqn"`
	Serial        string `json:"serial_number"` // at most 20 bytes
	Model         string `json:"model_number"`  // at most 40 bytes
	MaxNamespaces int    `json:"max_namespaces"`
}

// CreateSubsystem creates a subsystem. Its error does not say whether it
// exists: read it.
func (c *Client) CreateSubsystem(ctx context.Context, s SubsystemCreate) error {
	return c.Do(ctx, "nvmf_create_subsystem", s)
}

// DeleteSubsystem deletes a subsystem and ends its sessions. NotFound: no such
// subsystem.
func (c *Client) DeleteSubsystem(ctx context.Context, nqn string) error {
	return c.Do(ctx, "nvmf_delete_subsystem", byNQN{nqn})
}

// AddNamespace exports a bdev under its UUID, also as NGUID. Its error does not
// say whether the bdev is missing or exported: read the subsystem.
func (c *Client) AddNamespace(ctx context.Context, nqn string, d SubsystemDisk) error {
	params := struct {
		byNQN
		Namespace SubsystemDisk `json:"namespace"`
	}{byNQN{nqn}, d}
	return c.Call(ctx, "nvmf_subsystem_add_ns", params, nil)
}

// AddHost admits a host. Its error does not say whether it is admitted already,
// or whether an entry of the keyring is missing: read them.
func (c *Client) AddHost(ctx context.Context, nqn, host string, keys HostKeys) error {
	return c.Do(ctx, "nvmf_subsystem_add_host", keysOfHost{hostOf{byNQN{nqn}, host}, keys})
}

// SetHostKeys replaces the keys of an admitted host but that of TLS. Its sessions
// stay.
func (c *Client) SetHostKeys(ctx context.Context, nqn, host string, keys HostKeys) error {
	keys.TLS = ""
	return c.Do(ctx, "nvmf_subsystem_set_keys", keysOfHost{hostOf{byNQN{nqn}, host}, keys})
}

// RemoveHost removes a host and ends its sessions; releases before 26.05 return
// before they have ended. Its error does not say whether the host was admitted:
// read the subsystem.
func (c *Client) RemoveHost(ctx context.Context, nqn, host string) error {
	return c.Do(ctx, "nvmf_subsystem_remove_host", hostOf{byNQN{nqn}, host})
}

type hostOf struct {
	byNQN
	Host string `json:"host"`
}

type keysOfHost struct {
	hostOf
	HostKeys
}

// AllowAnyHost admits every host, or only those of the list.
func (c *Client) AllowAnyHost(ctx context.Context, nqn string, allow bool) error {
	params := struct {
		byNQN
		Allow bool `json:"allow_any_host"`
	}{byNQN{nqn}, allow}
	return c.Do(ctx, "nvmf_subsystem_allow_any_host", params)
}

// AddListener makes a subsystem reachable. Its error does not say whether the
// listener exists: read the subsystem. All subsystems that listen at an address
// share its socket, which has TLS if the first one has.
func (c *Client) AddListener(ctx context.Context, nqn string, l Listener) error {
	params := struct {
		listenerOf
		TLS bool `json:"secure_channel,omitempty"`
	}{listenerOf{byNQN{nqn}, l.NVMeAddress}, l.TLS}
	return c.Do(ctx, "nvmf_subsystem_add_listener", params)
}

// RemoveListener ends the sessions at an address of a subsystem. Its error does
// not say whether the listener existed: read the subsystem.
func (c *Client) RemoveListener(ctx context.Context, nqn string, a NVMeAddress) error {
	return c.Do(ctx, "nvmf_subsystem_remove_listener", listenerOf{byNQN{nqn}, a})
}

type listenerOf struct {
	byNQN
	Address NVMeAddress `json:"listen_address"`
}

// SubsystemController is the session of a host.
type SubsystemController struct {
	ControllerID int    `json:"cntlid"`
	HostNQN      string `json:"hostnqn"`
}

// SubsystemControllers returns the sessions of a subsystem.
func (c *Client) SubsystemControllers(ctx context.Context, nqn string) ([]SubsystemController, error) {
	var all []SubsystemController
	err := c.Call(ctx, "nvmf_subsystem_get_controllers", byNQN{nqn}, &all)
	return all, err
}

// QueuePair is a connection of a session.
type QueuePair struct {
	ControllerID int         `json:"cntlid"`
	ID           int         `json:"qid"`
	HostNQN      string      `json:"hostnqn"`
	Local        NVMeAddress `json:"listen_address"`
	Peer         NVMeAddress `json:"peer_address"`
}

// QueuePairs returns the connections of a subsystem.
func (c *Client) QueuePairs(ctx context.Context, nqn string) ([]QueuePair, error) {
	var all []QueuePair
	err := c.Call(ctx, "nvmf_subsystem_get_qpairs", byNQN{nqn}, &all)
	return all, err
}
