package dpubench

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
	"github.com/cleatproject/cleat/test/testkit"
)

// createRequests are the plugin's requests to SNAP.
// TestRequestsDoNotGrowWithDevices checks them, so that the bare client is
// comparable.
func createRequests() []string {
	return []string{"bdev_nvme_get_controllers", "bdev_nvme_attach_controller", "bdev_get_bdevs"}
}
func getRequests() []string { return []string{"bdev_get_bdevs", "bdev_nvme_get_controllers"} }
func deleteRequests() []string {
	return []string{"nvme_subsystem_list", "nvme_subsystem_list", "bdev_nvme_detach_controller"}
}

// bareCaller sends the plugin's requests to SNAP, and does nothing else. It has
// its own subsystem.
type bareCaller struct {
	rpc *spdk.Client
	own int
}

// bare returns callers that share a client, as the plugin's calls do.
func (s *site) bare(b *testing.B, n int) (all []bareCaller) {
	rpc := testkit.Value(spdk.Open(spdk.Config{Socket: s.snap}))(s)
	b.Cleanup(func() { testkit.Must(s, rpc.Close()) })
	for i := range n {
		all = append(all, bareCaller{rpc, most + i})
	}
	return all
}

func (c bareCaller) get(ctx context.Context, device string) error {
	bdev, err := c.rpc.Bdev(ctx, device)
	if err != nil {
		return err
	}
	_, err = c.rpc.NVMeController(ctx, controllerOf(bdev.Name))
	return err
}

// controllerOf returns the controller of a bdev on namespace 1.
func controllerOf(bdev string) string { return bdev[:len(bdev)-len("n1")] }

// create creates a device.
func (c bareCaller) create(ctx context.Context) (string, error) {
	name := fmt.Sprintf("bare%d", c.own)
	if _, err := c.rpc.NVMeController(ctx, name); !errors.Is(err, spdk.NotFound) {
		return "", fmt.Errorf("controller %s exists before it is created: %w", name, err)
	}
	bdevs, err := c.rpc.AttachNVMe(ctx, spdk.NVMeAttach{
		Name: name, NVMeAddress: spdk.NVMeAddress{Transport: "TCP", Family: "IPv4", Address: address, Service: fmt.Sprint(port), SubNQN: nqn(c.own)},
	})
	if err != nil {
		return "", err
	}
	if len(bdevs) != 1 {
		return "", fmt.Errorf("controller %s has the bdevs %q, want one", name, bdevs)
	}
	bdev, err := c.rpc.Bdev(ctx, bdevs[0])
	return bdev.Name, err
}

func (c bareCaller) remove(ctx context.Context, device string) error {
	for range 2 {
		if _, err := (snap.SNAP{RPC: c.rpc}).Subsystems(ctx); err != nil {
			return err
		}
	}
	return c.rpc.DetachNVMe(ctx, controllerOf(device), nil)
}
