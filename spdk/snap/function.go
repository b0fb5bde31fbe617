package snap

import "context"

// EmulationNVMe is the type of functions that carry NVMe controllers.
const EmulationNVMe = "NVME"

// Function is an emulated PCI function.
type Function struct {
	EmulationType string     `json:"emulation_type"`
	Hotplugged    bool       `json:"hotplugged"`
	PCI           string     `json:"pci_bdf"` // empty until it is plugged
	VUID          string     `json:"vuid"`
	Controller    string     `json:"ctrl_id"` // empty: it is free
	VFs           []Function `json:"vfs"`
}

// Functions returns all, with those that are not plugged.
func (s SNAP) Functions(ctx context.Context) ([]Function, error) {
	return call[[]Function](ctx, s, "emulation_function_list", map[string]any{"all": true})
}

// CreateFunction makes one for a controller that will be plugged in, and returns
// its VUID. The host sees nothing yet.
func (s SNAP) CreateFunction(ctx context.Context) (string, error) {
	made, err := call[Function](ctx, s, "nvme_function_create", nil)
	return named("nvme_function_create", "vuid", made.VUID, err)
}

// DestroyFunction removes one that CreateFunction made.
func (s SNAP) DestroyFunction(ctx context.Context, vuid string) error {
	return s.RPC.Do(ctx, "nvme_function_destroy", map[string]any{"vuid": vuid})
}
