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

// dpu is the state of the chapter.
type dpu struct {
	*demo
	socket         string // of SNAP
	plugin, double *process
	orders         io.Writer // to the double
	rpc            *spdk.Client
	client         *client.Client
	devices        []client.Create
	names          map[string]string // of devices, by volume
	before         []string          // what SNAP held at the start
}

func newDPU(d *demo) chapter {
	u := &dpu{demo: d, socket: d.path("dpu", "snap", "snap.sock"), names: map[string]string{}}
	c := chapter{
		name: "dpu", against: "the test double of SNAP", release: u.release,
		heading: "DPU devices of cleat dpu, against the test double of SNAP: it answers as SNAP does, and moves no data. --snap-socket names a real one.",
		steps: []step{
			{name: "dpu-start", title: "start the DPU plugin", run: u.start},
			{name: "dpu-create", title: "create DPU devices", run: u.create,
				claim: "a device requested twice is created once, and volumes of one subsystem share its controller"},
			{name: "dpu-expose", title: "show one to a host", run: u.expose,
				claim: "a device that SNAP shows to a host is not deleted"},
			{name: "dpu-kill", title: "kill -9 the DPU plugin", run: u.kill,
				claim: "what kill -9 left of a device is removed at the next start, and other devices are untouched"},
			{name: "dpu-restart", title: "restart SNAP", run: u.restart,
				claim: "after a restart of SNAP no device exists until it is requested, and then it has its name again"},
			{name: "dpu-delete", title: "delete the DPU devices", run: u.remove,
				claim: "deleted devices leave nothing in SNAP and no mount"},
		},
	}
	if d.snapSocket != "" {
		u.socket, c.against = d.snapSocket, "the SNAP process on "+d.snapSocket
		c.heading = "DPU devices of cleat dpu, against " + c.against + "; nothing is killed, restarted or shown to a host there."
		c.steps = []step{c.steps[0], c.steps[1], c.steps[5]}
	} else if unix.Access(d.program("cleat-snap-double"), unix.X_OK) != nil {
		c.leftOut = "there is no test double of SNAP at " + d.program("cleat-snap-double") + " (make demo builds it; --snap-socket names a SNAP process)"
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
	eventually(ctx, func() (err error) { u.before, err = u.held(ctx); return err })
	began := time.Now()
	u.startPlugin(ctx)
	ready := since(began)
	info, offers := must(u.client.Info(ctx)), must(u.client.Capabilities(ctx))
	want(offers.Block && offers.Get && offers.List, "the plugin announces %q with this SNAP, which is too little", offers.All)
	u.devices = u.wanted(offers.Filesystem)
	return fmt.Sprintf("%s %s asked SNAP and was ready after %s", info.Name, info.Version, ready)
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
	u.createAgain(ctx)
	controllers := 0
	for _, h := range must(u.held(ctx)) {
		if strings.HasPrefix(h, "bdev_nvme_get_controllers ") {
			controllers++
		}
	}
	want(u.snapSocket != "" || controllers == 1, "two namespaces of one subsystem have %d controllers, want 1", controllers)
	return fmt.Sprintf("%d devices; requested twice, created once", len(u.devices))
}

// createAgain requests the devices again and wants the same ones.
func (u *dpu) createAgain(ctx context.Context) {
	for _, d := range u.devices {
		again := must(u.client.Create(ctx, d))
		want(again == u.names[d.Volume], "volume %s has device %s, and the same request gave %s", d.Volume, u.names[d.Volume], again)
	}
	u.checkDevices(ctx)
}

// checkDevices wants GetDevice, ListDevices and SNAP to show each device.
func (u *dpu) checkDevices(ctx context.Context) {
	listed, _, err := u.client.List(ctx, 0, "")
	check(err)
	want(len(listed) == len(u.devices), "ListDevices lists %v, want %d devices", listed, len(u.devices))
	held := strings.Join(must(u.held(ctx)), "\n") + "\n"
	for _, d := range u.devices {
		name := u.names[d.Volume]
		must(u.client.Get(ctx, d.Volume, name))
		want(slices.Contains(listed, client.Entry{Volume: d.Volume, Device: name}), "ListDevices lacks %s of volume %s: %v", name, d.Volume, listed)
		// SPDK's own releases do not list file system devices.
		want(strings.Contains(held, " "+name+"\n") || d.Mode != "Block" && u.snapSocket != "", "the plugin has device %s of volume %s, and SNAP holds %s", name, d.Volume, held)
	}
}

// expose does what the node driver does: it has SNAP put a device into a subsystem
// that a host can see, and takes it out again.
func (u *dpu) expose(ctx context.Context) string {
	const nqn = "nqn.2022-10.io.nvda.nvme:cleat-demo"
	volume := u.devices[0].Volume
	check(u.rpc.Do(ctx, "nvme_subsystem_create", map[string]any{"nqn": nqn}))
	check(u.rpc.Do(ctx, "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": nqn, "nsid": 1, "bdev_name": u.names[volume]}))
	refused := u.client.Delete(ctx, volume, u.names[volume])
	want(status.Code(refused) == codes.FailedPrecondition, "DeleteDevice of a device that a host sees should answer FAILED_PRECONDITION, not %v", refused)
	check(u.rpc.Do(ctx, "nvme_namespace_destroy", map[string]any{"nqn": nqn, "nsid": 1}))
	check(u.rpc.Do(ctx, "nvme_subsystem_destroy", map[string]any{"nqn": nqn}))
	u.checkDevices(ctx)
	return "DeleteDevice answered FAILED_PRECONDITION while it was shown; hidden again, the device exists"
}

// kill kills the plugin in a CreateDevice that waits: its controller is attached,
// and its namespace does not appear.
func (u *dpu) kill(ctx context.Context) string {
	before, caller, answer := must(u.held(ctx)), u.client, make(chan error, 1)
	go func() {
		_, err := caller.Create(ctx, newDevice("demo-late", "Block", namespace(dpuLateNQN, 3)))
		answer <- err
	}()
	eventually(ctx, func() error {
		held, err := u.held(ctx)
		if err == nil && len(held) <= len(before) {
			err = fmt.Errorf("the slow CreateDevice has not reached SNAP, which holds %q", held)
		}
		return err
	})
	killed := time.Now()
	u.plugin.kill()
	want(<-answer != nil, "CreateDevice was answered by a plugin that was killed before")
	_ = u.client.Close() // it is broken
	u.startPlugin(ctx)
	u.awaitHeld(ctx, before)
	removed := since(killed)
	u.checkAbsent(ctx, "demo-late")
	u.checkDevices(ctx)
	return fmt.Sprintf("in a CreateDevice that had attached its controller; after the restart it was removed, %s after the kill", removed)
}

func (u *dpu) checkAbsent(ctx context.Context, volume string) {
	_, err := u.client.Get(ctx, volume, "")
	want(status.Code(err) == codes.NotFound, "GetDevice of volume %s should answer NOT_FOUND, not %v", volume, err)
}

// restart lets SNAP lose everything that it held.
func (u *dpu) restart(ctx context.Context) string {
	full := must(u.held(ctx))
	must(io.WriteString(u.orders, "restart\n"))
	u.awaitHeld(ctx, u.before)
	for _, d := range u.devices {
		u.checkAbsent(ctx, d.Volume)
	}
	began := time.Now()
	u.createAgain(ctx)
	u.awaitHeld(ctx, full)
	return fmt.Sprintf("GetDevice answered NOT_FOUND; CreateDevice created all %d again within %s, under their names", len(u.devices), since(began))
}

// remove deletes the devices, twice, and ends plugin and double.
func (u *dpu) remove(ctx context.Context) string {
	n := len(u.devices)
	for range 2 {
		for _, d := range u.devices {
			check(u.client.Delete(ctx, d.Volume, u.names[d.Volume]))
			u.checkAbsent(ctx, d.Volume)
		}
	}
	u.devices = nil
	u.awaitHeld(ctx, u.before)
	mounts, loops, err := left(ctx, u.path("dpu"))
	want(err == nil && len(mounts)+len(loops) == 0, "all devices are deleted, and the kernel still holds %v %v (%v)", mounts, loops, err)
	check(u.client.Close())
	u.plugin.stop()
	if u.double != nil {
		u.double.stop()
	}
	noSockets(u.path("dpu"))
	return fmt.Sprintf("%d devices; SNAP holds none, no mount is left; the plugin ended with exit code 0", n)
}

// release deletes the devices from a SNAP process that outlives the demo, with a
// new plugin: the one that runs may be dying.
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
		err = fmt.Errorf("devices %v in the SNAP process on %s: %w", u.names, u.snapSocket, err)
	}
	return err
}
