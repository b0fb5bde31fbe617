package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/spdk"
)

// dpu is the state of the DPU chapter.
type dpu struct {
	*demo
	socket         string // of SNAP
	plugin, double *process
	orders         io.Writer // to the double
	rpc            *spdk.Client
	client         *client.Client
	devices        []client.Create
	names          map[string]string // of devices, by volume
	before         []string          // objects in SNAP at the start
}

func newDPU(d *demo) chapter {
	u := &dpu{demo: d, socket: d.path("dpu", "snap", "snap.sock"), names: map[string]string{}}
	c := chapter{
		name: "dpu", against: "the test double of SNAP", release: u.release,
		heading: "DPU devices of cleat dpu, against the test double of SNAP: it answers like SNAP, but moves no data. Use --snap-socket for a real one.",
		steps: []step{
			{name: "dpu-start", title: "start the DPU plugin", run: u.start},
			{name: "dpu-create", title: "create DPU devices", run: u.create,
				claim: "a device requested twice is created once, and volumes of one subsystem share its controller"},
			{name: "dpu-expose", title: "expose a device to a host", run: u.expose,
				claim: "a device that SNAP exposes to a host is not deleted"},
			{name: "dpu-kill", title: "kill -9 the DPU plugin", run: u.kill,
				claim: "a device left incomplete by kill -9 is removed at the next start, and other devices are unchanged"},
			{name: "dpu-restart", title: "restart SNAP", run: u.restart,
				claim: "after a restart of SNAP no device exists until it is requested again, and it then has the same name"},
			{name: "dpu-delete", title: "delete the DPU devices", run: u.remove,
				claim: "deleted devices leave no object in SNAP and no mount"},
		},
	}
	if d.snapSocket != "" {
		u.socket, c.against = d.snapSocket, "the SNAP process on "+d.snapSocket
		c.heading = "DPU devices of cleat dpu, against " + c.against + "; that process is not killed or restarted, and exposes nothing to a host."
		c.steps = []step{c.steps[0], c.steps[1], c.steps[5]}
	} else if unix.Access(d.program("cleat-snap-double"), unix.X_OK) != nil {
		c.leftOut = "no test double of SNAP at " + d.program("cleat-snap-double") + " (make demo builds it; --snap-socket names a SNAP process)"
	}
	return c
}

func (u *dpu) start(ctx context.Context) string {
	check(errors.Join(os.MkdirAll(u.path("dpu/pool/share"), 0o700), os.MkdirAll(u.path("dpu/snap"), 0o700),
		os.WriteFile(u.path("dpu/pool/disk.img"), make([]byte, mib), 0o600), os.WriteFile(u.path("dpu/scene.json"), []byte(dpuScene), 0o600)))
	if u.snapSocket == "" {
		cmd := u.command("cleat-snap-double", "-socket", u.socket, "-snap", "-fork", "-scene", u.path("dpu/scene.json"))
		u.orders = must(cmd.StdinPipe())
		u.double = u.demo.start("double of SNAP", cmd)
	}
	u.rpc = must(spdk.Open(spdk.Config{Socket: u.socket}))
	eventually(ctx, func() (err error) { u.before, err = u.objects(ctx); return err })
	began := time.Now()
	u.startPlugin(ctx)
	ready := since(began)
	info, offers := must(u.client.Info(ctx)), must(u.client.Capabilities(ctx))
	want(offers.Block && offers.Get && offers.List, "the plugin announces only %q with this SNAP; the demo needs block devices, Get and List", offers.All)
	u.devices = u.wanted(offers.Filesystem)
	return fmt.Sprintf("%s %s connected to SNAP and was ready after %s", info.Name, info.Version, ready)
}

func (u *dpu) startPlugin(ctx context.Context) {
	socket := u.path("dpu/plugin/dpu.sock")
	u.plugin = u.demo.start("DPU plugin", u.command("cleat", "dpu", "--plugin-name", "cleat-demo", "--provider-name", "cleat-demo", "--plugin-socket", socket,
		"--snap-socket", u.socket, "--volume-dir", u.path("dpu/volumes"), "--state-dir", u.path("dpu/state"), "--pool", dpuPool+"="+u.path("dpu/pool"),
		"--node", "cleat-demo", "--log-format", "text"))
	eventually(ctx, func() (err error) {
		if u.client, err = client.Dial(ctx, socket); err != nil {
			return err
		}
		ready, _, err := u.client.Probe(ctx)
		if err == nil && !ready {
			err = errors.New("the DPU plugin is not ready")
		}
		if err != nil {
			_ = u.client.Close()
		}
		return err
	})
}

func (u *dpu) create(ctx context.Context) string {
	for _, d := range u.devices {
		u.names[d.Volume] = must(u.client.Create(ctx, d))
	}
	u.recreate(ctx)
	controllers := 0
	for _, h := range must(u.objects(ctx)) {
		if strings.HasPrefix(h, "bdev_nvme_get_controllers ") {
			controllers++
		}
	}
	want(u.snapSocket != "" || controllers == 1, "two namespaces of one subsystem have %d controllers, want 1", controllers)
	return fmt.Sprintf("%d devices; requested twice, created once", len(u.devices))
}

// recreate requests the devices again and fails unless it gets the same ones.
func (u *dpu) recreate(ctx context.Context) {
	for _, d := range u.devices {
		again := must(u.client.Create(ctx, d))
		want(again == u.names[d.Volume], "volume %s has device %s, but the same request returned %s", d.Volume, u.names[d.Volume], again)
	}
	u.checkDevices(ctx)
}

// checkDevices fails unless GetDevice, ListDevices and SNAP have each device.
func (u *dpu) checkDevices(ctx context.Context) {
	listed, _, err := u.client.List(ctx, 0, "")
	check(err)
	want(len(listed) == len(u.devices), "ListDevices lists %v, want %d devices", listed, len(u.devices))
	held := strings.Join(must(u.objects(ctx)), "\n") + "\n"
	for _, d := range u.devices {
		name := u.names[d.Volume]
		must(u.client.Get(ctx, d.Volume, name))
		want(slices.Contains(listed, client.Entry{Volume: d.Volume, Device: name}), "ListDevices lacks %s of volume %s: %v", name, d.Volume, listed)
		// SPDK releases without SNAP do not list file system devices.
		want(strings.Contains(held, " "+name+"\n") || d.Mode != "Block" && u.snapSocket != "", "the plugin has device %s of volume %s, but SNAP has %s", name, d.Volume, held)
	}
}

// expose makes SNAP add a device to a subsystem that a host sees and remove it
// again, like the node driver.
func (u *dpu) expose(ctx context.Context) string {
	const nqn = "nqn.2022-10.io.nvda.nvme:cleat-demo"
	volume := u.devices[0].Volume
	check(u.rpc.Do(ctx, "nvme_subsystem_create", map[string]any{"nqn": nqn}))
	check(u.rpc.Do(ctx, "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": nqn, "nsid": 1, "bdev_name": u.names[volume]}))
	refused := u.client.Delete(ctx, volume, u.names[volume])
	want(status.Code(refused) == codes.FailedPrecondition, "DeleteDevice of a device exposed to a host: got %v, want FAILED_PRECONDITION", refused)
	check(u.rpc.Do(ctx, "nvme_namespace_destroy", map[string]any{"nqn": nqn, "nsid": 1}))
	check(u.rpc.Do(ctx, "nvme_subsystem_destroy", map[string]any{"nqn": nqn}))
	u.checkDevices(ctx)
	return "DeleteDevice answered FAILED_PRECONDITION while the device was exposed; the device still exists"
}

// kill kills the plugin during a CreateDevice whose controller is attached and
// whose namespace does not appear.
func (u *dpu) kill(ctx context.Context) string {
	before, caller, answer := must(u.objects(ctx)), u.client, make(chan error, 1)
	go func() {
		_, err := caller.Create(ctx, newDevice("demo-late", "Block", namespace(dpuLateNQN, 3)))
		answer <- err
	}()
	eventually(ctx, func() error {
		held, err := u.objects(ctx)
		if err == nil && len(held) <= len(before) {
			err = fmt.Errorf("CreateDevice has not reached SNAP, which has %q", held)
		}
		return err
	})
	killed := time.Now()
	u.plugin.kill()
	want(<-answer != nil, "CreateDevice succeeded although the plugin was killed")
	_ = u.client.Close() // the connection is broken
	u.startPlugin(ctx)
	u.awaitObjects(ctx, before)
	removed := since(killed)
	u.checkAbsent(ctx, "demo-late")
	u.checkDevices(ctx)
	return fmt.Sprintf("during a CreateDevice that had attached its controller; the controller was removed %s after the kill", removed)
}

func (u *dpu) checkAbsent(ctx context.Context, volume string) {
	_, err := u.client.Get(ctx, volume, "")
	want(status.Code(err) == codes.NotFound, "GetDevice of volume %s: got %v, want NOT_FOUND", volume, err)
}

// restart makes SNAP lose all its objects.
func (u *dpu) restart(ctx context.Context) string {
	full := must(u.objects(ctx))
	must(io.WriteString(u.orders, "restart\n"))
	u.awaitObjects(ctx, u.before)
	for _, d := range u.devices {
		u.checkAbsent(ctx, d.Volume)
	}
	began := time.Now()
	u.recreate(ctx)
	u.awaitObjects(ctx, full)
	return fmt.Sprintf("GetDevice answered NOT_FOUND; CreateDevice created all %d again within %s, with the same names", len(u.devices), since(began))
}

// remove deletes the devices twice and stops plugin and double.
func (u *dpu) remove(ctx context.Context) string {
	n := len(u.devices)
	for range 2 {
		for _, d := range u.devices {
			check(u.client.Delete(ctx, d.Volume, u.names[d.Volume]))
			u.checkAbsent(ctx, d.Volume)
		}
	}
	u.devices = nil
	u.awaitObjects(ctx, u.before)
	mounts, loops, err := leftovers(ctx, u.path("dpu"))
	want(err == nil && len(mounts)+len(loops) == 0, "mounts %v and loop devices %v are left after all devices were deleted (%v)", mounts, loops, err)
	check(u.client.Close())
	u.plugin.stop()
	if u.double != nil {
		u.double.stop()
	}
	checkNoSockets(u.path("dpu"))
	return fmt.Sprintf("%d devices; no object in SNAP and no mount is left; the plugin ended with exit code 0", n)
}

// release deletes the devices from a SNAP process that outlives the demo. It
// starts a new plugin, since the running one can be ending.
func (u *dpu) release(ctx context.Context) error {
	if u.snapSocket == "" || len(u.names) == 0 || len(u.devices) == 0 {
		return nil
	}
	_ = u.plugin.end(unix.SIGTERM)
	_, err := recovered(ctx, func(ctx context.Context) string {
		u.startPlugin(ctx)
		for _, d := range u.devices {
			check(u.client.Delete(ctx, d.Volume, ""))
		}
		return ""
	})
	if err != nil {
		err = fmt.Errorf("delete devices %v from the SNAP process on %s: %w", u.names, u.snapSocket, err)
	}
	return err
}
