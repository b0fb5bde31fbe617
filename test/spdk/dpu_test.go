package spdk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/testkit"
)

// dpu is cleat dpu.
type dpu struct {
	*client.Client
	process *testkit.Process
}

func startDPU(t testing.TB, dir, snap string) *dpu {
	t.Helper()
	socket := filepath.Join(dir, "plugin", "dpu.sock")
	cmd := exec.Command(cleat, "dpu", "--plugin-socket", socket, "--plugin-name", "test", "--provider-name", "snap",
		"--cluster-id", cluster, "--node", dpuName, "--snap-socket", snap, "--volume-dir", filepath.Join(dir, "volumes"),
		"--state-dir", filepath.Join(dir, "dpu-state"), "--log-format", "text")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	d := &dpu{process: testkit.Start(t, cmd)}
	t.Cleanup(func() {
		if err := d.process.Stop(); err != nil {
			t.Errorf("cleat dpu did not stop cleanly: %v", err)
		}
	})
	ctx := testkit.Context(t)
	testkit.Must(t, d.process.Until(func() (err error) {
		if d.Client == nil {
			if d.Client, err = client.Dial(ctx, socket); err != nil {
				return err
			}
		}
		ready, _, err := d.Probe(ctx)
		if err == nil && !ready {
			err = errors.New("not ready")
		}
		return err
	}))
	t.Cleanup(func() { testkit.Must(t, d.Close()) })
	return d
}

// pvcName is the volume_id of the DPU's contract: the name of the PVC.
const pvcName = "data-0"

func deviceOf(v *csi.Volume) client.Create {
	return client.Create{
		Volume: pvcName, Mode: request.Block, Modes: []storagev1.AccessMode{storagev1.AccessMode_ACCESS_MODE_RWX},
		Contexts: request.Contexts{Volume: v.GetVolumeContext()},
	}
}

// createDevice repeats CreateDevice, as DPF's node driver does, until the bdev
// of the volume is in the DPU.
func (s *site) createDevice(v *csi.Volume) (device string) {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "CreateDevice", func() (err error) {
		device, err = s.dpu.Create(testkit.Context(s.t), deviceOf(v))
		return err
	})
	_, uuid, _ := strings.Cut(v.GetVolumeId(), ":")
	if b := testkit.Value(s.snap.Bdev(testkit.Context(s.t), device))(s.t); b.UUID != uuid {
		s.t.Errorf("device %s has UUID %s, want %s", device, b.UUID, uuid)
	}
	return device
}

func (s *site) deleteDevice(device string) {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "DeleteDevice", func() error { return s.dpu.Delete(testkit.Context(s.t), pvcName, device) })
	if all := testkit.Value(s.snap.NVMeControllers(testkit.Context(s.t)))(s.t); len(all) > 0 {
		s.t.Errorf("the DPU still has controllers: %+v", all)
	}
}

// dpuIsRefused checks that no device can be created.
func (s *site) dpuIsRefused(v *csi.Volume) {
	s.t.Helper()
	device, err := s.dpu.Create(testkit.Context(s.t), deviceOf(v))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), hostNQN(dpuName)) {
		s.t.Errorf("CreateDevice of a volume that is not published: %q, %v, want FAILED_PRECONDITION with the host NQN %s", device, err, hostNQN(dpuName))
	}
}

// dpuState returns the state of the DPU's only path to the volume.
func (s *site) dpuState() spdk.ControllerState {
	s.t.Helper()
	all := testkit.Value(s.snap.NVMeControllers(testkit.Context(s.t)))(s.t)
	if len(all) != 1 || len(all[0].Paths) != 1 {
		s.t.Fatalf("the DPU has the controllers %+v, want one with one path", all)
	}
	return all[0].Paths[0].State
}

func (s *site) dpuConnects() {
	s.t.Helper()
	testkit.EventuallyNil(s.t, "the DPU is connected", func() error {
		if state := s.dpuState(); state != spdk.ControllerEnabled {
			return fmt.Errorf("controller %s", state)
		}
		return nil
	})
}

// dpuIsFenced checks that the session has ended, and that the DPU knows it.
func (s *site) dpuIsFenced(v *csi.Volume) {
	s.t.Helper()
	if n := s.network.Controllers(subnqn(v))[hostNQN(dpuName)]; n > 0 {
		s.t.Errorf("the DPU has %d sessions while it is fenced", n)
	}
	if state := s.dpuState(); state == spdk.ControllerEnabled {
		s.t.Errorf("the DPU's controller is %s while it is fenced", state)
	}
}

// admitted waits until the target admits exactly these nodes.
func (s *site) admitted(v *csi.Volume, nodes ...string) {
	s.t.Helper()
	var want []string
	for _, n := range nodes {
		want = append(want, hostNQN(n))
	}
	slices.Sort(want)
	testkit.EventuallyNil(s.t, "admitted hosts", func() error {
		sub, err := s.target.Client.Subsystem(testkit.Context(s.t), subnqn(v))
		if err != nil {
			return err
		}
		var got []string
		for _, h := range sub.Hosts {
			got = append(got, h.NQN)
		}
		slices.Sort(got)
		// The listener comes last: without, hosts cannot connect yet.
		if sub.AllowAnyHost || len(sub.Listeners) == 0 || !slices.Equal(got, want) {
			return fmt.Errorf("allow_any_host %t, %d listeners, hosts %q, want %q", sub.AllowAnyHost, len(sub.Listeners), got, want)
		}
		return nil
	})
}
