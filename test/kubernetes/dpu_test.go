package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	snapDir = "/var/lib/nvidia/storage/snap"
	dpuPool = "3f6a2f0e-5a55-4a3c-9f5e-2d1c9f0a7b22"
)

// buildSNAP builds the double of SNAP, which runs outside of pods, like SNAP on
// a DPU.
func buildSNAP(ctx context.Context, dir string) error {
	return testkit.BuildTo(ctx, filepath.Join(dir, "bin", "snap-double"), "./spdk/spdktest/double")
}

// The chart's DPU plugin serves at the contract's path, creates devices in the
// double of SNAP, and keeps them when its pod is replaced or killed.
func TestDPU(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{snapDir + "/providers/snap", "/var/lib/cleat/dpu-pool/shared"} {
		testkit.Must(t, os.MkdirAll(dir, 0o755))
	}
	testkit.Must(t, os.WriteFile("/var/lib/cleat/dpu-pool/shared/letter", []byte("hello"), 0o644))
	scene := filepath.Join(testCluster.Dir, "scene.json")
	testkit.Must(t, os.WriteFile(scene, []byte(`{"subsystems": [`+subsystem("both")+", "+subsystem("blocks")+`]}`), 0o644))
	socket := snapDir + "/providers/snap/snap.sock"
	double := testkit.Value(testCluster.Start("snap", filepath.Join(testCluster.Dir, "bin", "snap-double"), nil, "-socket", socket, "-snap", "-fork", "-scene", scene))(t)
	t.Cleanup(func() {
		if err := double.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		plugin string
		blocks bool // not privileged
		port   int
	}{{"both", false, 29838}, {"blocks", true, 29839}} {
		t.Run(c.plugin, func(t *testing.T) {
			t.Parallel()
			d := newDPU(t, c.plugin, socket)
			d.install(release{name: "dpu-" + c.plugin, values: fmt.Sprintf(`
csi: {enabled: false}
dpu:
  enabled: true
  pluginName: %s
  blockDevicesOnly: %t
  metricsPort: %d
  nodeSelector: {kubernetes.io/hostname: %s}
  extraArgs: [--pool=%s=/var/lib/cleat/dpu-pool]
  extraVolumes: [{name: pool, hostPath: {path: /var/lib/cleat/dpu-pool, type: Directory}}]
  extraVolumeMounts: [{name: pool, mountPath: /var/lib/cleat/dpu-pool}]
`, c.plugin, c.blocks, c.port, testCluster.Node, dpuPool)})
			d.testLifecycle(!c.blocks)
		})
	}
}

func subsystem(name string) string {
	return fmt.Sprintf(`{"nqn": "nqn.2026-01.com.example:%s", "addresses": ["TCP,192.0.2.10,4420"], "namespaces": [{"nsid": 1, "uuid": "e33a8f79-5f83-40cc-b7d5-cc0aab47b9%02x", "bytes": 1073741824}]}`, name, len(name))
}

// dpu stands in for the node driver of a DPU, as client of the plugin.
type dpu struct {
	*space
	plugin string
	snap   *spdk.Client
}

func newDPU(t *testing.T, plugin, socket string) *dpu {
	snap := testkit.Value(spdk.Open(spdk.Config{Socket: socket}))(t)
	t.Cleanup(func() { _ = snap.Close() })
	return &dpu{space: newSpace(t), plugin: plugin, snap: snap}
}

// testLifecycle creates devices, replaces and kills the plugin, and deletes the
// devices.
func (d *dpu) testLifecycle(filesystems bool) {
	block := client.Create{Volume: "pvc-" + d.plugin, Mode: "Block", Modes: append(client.Create{}.Modes, 1)}
	block.Contexts.Volume = map[string]string{"targetType": "tcp", "targetAddr": "192.0.2.10", "targetPort": "4420", "nqn": "nqn.2026-01.com.example:" + d.plugin}
	wanted := []client.Create{block}
	if filesystems {
		files := client.Create{Volume: "pvc-files", Modes: block.Modes}
		files.Contexts = request.Contexts{Volume: map[string]string{"targetType": "file", "pool": dpuPool, "file": "shared"}}
		wanted = append(wanted, files)
	}
	devices := map[string]string{}
	d.ask("make devices", func(ctx context.Context, c *client.Client) error {
		offers, err := c.Capabilities(ctx)
		if err != nil {
			return err
		}
		if !offers.Block || !offers.Get || !offers.List {
			d.Errorf("got capabilities %q", offers.All)
		}
		if provider, err := c.Provider(ctx); err != nil || provider != "snap" {
			d.Errorf("got provider %q (%v)", provider, err)
		}
		for _, q := range wanted {
			if devices[q.Volume], err = c.Create(ctx, q); err != nil {
				return err
			}
		}
		return nil
	})
	held := d.checkDevices(wanted, devices)

	pod := "-l=app.kubernetes.io/instance=dpu-" + d.plugin
	testkit.Value(testCluster.Kubectl(d.Context(), "", "-n", system, "delete", "pod", pod, "--wait"))(d)
	d.checkUnchanged("its pod was deleted", held, wanted, devices)

	argument := "--plugin-socket=" + d.socket()
	old := d.processOf(argument, 0)
	testkit.Must(d, unix.Kill(old, unix.SIGKILL))
	d.processOf(argument, old)
	d.checkUnchanged("it was killed", held, wanted, devices)

	d.ask("delete devices", func(ctx context.Context, c *client.Client) error {
		for volume, device := range devices {
			if err := c.Delete(ctx, volume, device); err != nil {
				return err
			}
			if _, err := c.Get(ctx, volume, device); status.Code(err) != codes.NotFound {
				d.Errorf("deleted device: got error %v", err)
			}
		}
		return nil
	})
	for _, device := range devices {
		if left := d.inSNAP(device); left {
			d.Errorf("device %s is still in SNAP", device)
		}
	}
	if _, err := os.Lstat(d.hostFile()); !errors.Is(err, fs.ErrNotExist) {
		d.Errorf("%s is still mounted (%v)", d.hostFile(), err)
	}
}

func (d *dpu) socket() string { return filepath.Join(snapDir, "plugins", d.plugin, "dpu.sock") }

// hostFile returns a file in the directory that SNAP would expose to a host.
func (d *dpu) hostFile() string {
	return filepath.Join(snapDir, "providers/snap/volumes", d.plugin, "pvc-files", "letter")
}

// ask calls the plugin once it is ready; it can be starting.
func (d *dpu) ask(what string, do func(context.Context, *client.Client) error) {
	d.Helper()
	d.until(what, func(ctx context.Context) error {
		c, err := client.Dial(ctx, d.socket())
		if err != nil {
			return err
		}
		defer c.Close()
		if ready, _, err := c.Probe(ctx); err != nil || !ready {
			return fmt.Errorf("the plugin is not ready: %w", err)
		}
		if err := do(ctx, c); err != nil {
			d.Fatalf("%s: %v", what, err)
		}
		return nil
	})
}

// checkDevices checks that plugin, SNAP and the mount table have the devices,
// and returns the names of SNAP's controllers for this plugin's subsystem.
func (d *dpu) checkDevices(wanted []client.Create, devices map[string]string) (controllers []string) {
	d.Helper()
	d.ask("list devices", func(ctx context.Context, c *client.Client) error {
		list, _, err := c.List(ctx, 0, "")
		if err != nil || len(list) != len(wanted) {
			return fmt.Errorf("the plugin lists %v, want %d devices (%w)", list, len(wanted), err)
		}
		for _, q := range wanted {
			if _, err := c.Get(ctx, q.Volume, devices[q.Volume]); err != nil {
				return err
			}
		}
		return nil
	})
	for _, q := range wanted {
		if !d.inSNAP(devices[q.Volume]) {
			d.Errorf("SNAP has no device %s of volume %s", devices[q.Volume], q.Volume)
		}
	}
	if len(wanted) > 1 {
		if text, err := os.ReadFile(d.hostFile()); err != nil || string(text) != "hello" {
			d.Errorf("the directory for a host has %q (%v)", text, err)
		}
	}
	all := testkit.Value(d.snap.NVMeControllers(d.Context()))(d)
	for _, c := range all {
		controllers = append(controllers, fmt.Sprintf("%+v", c))
	}
	return slices.DeleteFunc(controllers, func(text string) bool { return !strings.Contains(text, "example:"+d.plugin) })
}

// checkUnchanged checks that the devices are as before and that requesting them
// again changes nothing.
func (d *dpu) checkUnchanged(why string, held []string, wanted []client.Create, devices map[string]string) {
	d.Helper()
	began := time.Now()
	d.ask("the devices after "+why, func(ctx context.Context, c *client.Client) error {
		for _, q := range wanted {
			if again, err := c.Create(ctx, q); err != nil || again != devices[q.Volume] {
				return fmt.Errorf("volume %s had device %s, but the same request returns %s (%w)", q.Volume, devices[q.Volume], again, err)
			}
		}
		return nil
	})
	d.Logf("after %s the plugin %s was ready within %.1f s", why, d.plugin, time.Since(began).Seconds())
	if got := d.checkDevices(wanted, devices); len(held) != 1 || !slices.Equal(got, held) {
		d.Errorf("after %s SNAP has controllers %q, want %q", why, got, held)
	}
}

// inSNAP reports whether SNAP has a device of either kind.
func (d *dpu) inSNAP(device string) bool {
	d.Helper()
	bdevs, err := d.snap.Bdevs(d.Context())
	testkit.Must(d, err)
	if slices.ContainsFunc(bdevs, func(b spdk.Bdev) bool { return b.Name == device }) {
		return true
	}
	_, err = d.snap.Fsdev(d.Context(), device)
	if err != nil && !errors.Is(err, spdk.NotFound) {
		d.Fatal(err)
	}
	return err == nil
}
