package snap

import (
	"context"
	"maps"

	"github.com/cleatproject/cleat/errs"
)

// Subsystem is an emulated NVMe subsystem.
type Subsystem struct {
	NQN         string          `json:"nqn"`
	Namespaces  []Namespace     `json:"namespaces"`
	Controllers []ControllerRef `json:"controllers"`
}

// Namespace is a bdev in a subsystem.
type Namespace struct {
	Bdev        string          `json:"bdev"`
	NSID        uint32          `json:"nsid"`
	UUID        string          `json:"uuid"`
	Controllers []ControllerRef `json:"controllers"` // that it is attached to
}

// ControllerRef names an emulated controller.
type ControllerRef struct {
	ID string `json:"ctrl_id"`
}

// Subsystems returns all emulated subsystems.
func (s SNAP) Subsystems(ctx context.Context) ([]Subsystem, error) {
	return call[[]Subsystem](ctx, s, "nvme_subsystem_list", nil)
}

// CreateSubsystem makes an empty one.
func (s SNAP) CreateSubsystem(ctx context.Context, nqn string) error {
	return s.RPC.Do(ctx, "nvme_subsystem_create", map[string]any{"nqn": nqn})
}

// DestroySubsystem removes one that is empty.
func (s SNAP) DestroySubsystem(ctx context.Context, nqn string) error {
	return s.RPC.Do(ctx, "nvme_subsystem_destroy", map[string]any{"nqn": nqn})
}

// CreateNamespace puts a bdev of the process into a subsystem.
func (s SNAP) CreateNamespace(ctx context.Context, nqn string, n Namespace) error {
	return s.RPC.Do(ctx, "nvme_namespace_create", map[string]any{
		"bdev_type": "spdk", "nqn": nqn, "nsid": n.NSID, "uuid": n.UUID, "bdev_name": n.Bdev,
	})
}

// DestroyNamespace takes one out of a subsystem; the bdev stays.
func (s SNAP) DestroyNamespace(ctx context.Context, nqn string, nsid uint32) error {
	return s.RPC.Do(ctx, "nvme_namespace_destroy", map[string]any{"nqn": nqn, "nsid": nsid})
}

// Controller is an emulated controller to be made. It sits on a PCI function,
// of which the address or the VUID is given.
type Controller struct {
	NQN        string
	PCI, VUID  string
	Suspended  bool
	Parameters map[string]any // more of them, as num_queues; those above win
}

// CreateController makes one and returns its id.
func (s SNAP) CreateController(ctx context.Context, c Controller) (string, error) {
	if (c.PCI == "") == (c.VUID == "") {
		return "", errs.Errorf(errs.Invalid, "nvme_controller_create: a controller sits on a PCI address (%q) or a VUID (%q), one of the two", c.PCI, c.VUID)
	}
	params := maps.Clone(c.Parameters)
	if params == nil {
		params = map[string]any{}
	}
	params["nqn"], params["suspended"] = c.NQN, c.Suspended
	if c.PCI != "" {
		params["pci_bdf"] = c.PCI
	} else {
		params["vuid"] = c.VUID
	}
	made, err := call[ControllerRef](ctx, s, "nvme_controller_create", params)
	return named("nvme_controller_create", "ctrl_id", made.ID, err)
}

// DestroyController removes one, whatever it still does.
func (s SNAP) DestroyController(ctx context.Context, id string) error {
	return s.RPC.Do(ctx, "nvme_controller_destroy", map[string]any{"ctrl_id": id, "force": true})
}

// AttachNamespace shows a namespace of the subsystem on a controller.
func (s SNAP) AttachNamespace(ctx context.Context, id string, nsid uint32) error {
	return s.RPC.Do(ctx, "nvme_controller_attach_ns", map[string]any{"ctrl_id": id, "nsid": nsid})
}

// DetachNamespace takes it back.
func (s SNAP) DetachNamespace(ctx context.Context, id string, nsid uint32) error {
	return s.RPC.Do(ctx, "nvme_controller_detach_ns", map[string]any{"ctrl_id": id, "nsid": nsid})
}

// ResumeController starts one that was made suspended.
func (s SNAP) ResumeController(ctx context.Context, id string) error {
	return s.RPC.Do(ctx, "nvme_controller_resume", map[string]any{"ctrl_id": id})
}

// PlugController shows one of a function that CreateFunction made to the host,
// and waits until that is done.
func (s SNAP) PlugController(ctx context.Context, id string) error {
	return s.RPC.Do(ctx, "nvme_controller_hotplug", map[string]any{"ctrl_id": id, "wait_for_done": true})
}

// UnplugController takes it away from the host, and waits until that is done.
func (s SNAP) UnplugController(ctx context.Context, id string) error {
	return s.RPC.Do(ctx, "nvme_controller_hotunplug", map[string]any{"ctrl_id": id, "wait_for_done": true})
}
