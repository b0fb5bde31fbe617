package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/volume"
)

const (
	data     = "data"      // XFS; its files are deleted and restored
	logs     = "logs"      // XFS; it grows, and is written to while the driver is killed
	restored = "restored"  // from the snapshot of data
	cloned   = "logs-copy" // from logs
	raw      = "raw"       // a block device
)

const (
	driverName = "csi.cleat.dev"
	driverType = "CSIPlugin"

	volumeSize   = 320 * mib // XFS needs at least 300 MiB
	expandedSize = 640 * mib
	fileCount    = 12
)

// volumes is the state of the volumes chapter.
type volumes struct {
	*demo
	host, driver *process
	plugins      *remote.Host
	client       *client.Driver
	files        tree  // of data, of logs, and of their copies
	free         int64 // bytes of the pool before the first volume
}

func newVolumes(d *demo) chapter {
	v := &volumes{demo: d}
	return chapter{
		name:    "volumes",
		heading: fmt.Sprintf("Volumes of cleat csi, registered by cleat host, on a pool of %s: data, file systems and loop devices are real.", human(int64(d.size))),
		steps:   slices.Concat(v.lifeSteps(), v.copySteps(), v.crashSteps()),
	}
}

func (v *volumes) lifeSteps() []step {
	return []step{
		{name: "host", title: "start the plugin host", run: v.startHost},
		{name: "start", title: "start the driver", run: v.startFirst},
		{name: "register", title: "find the driver by name", run: v.register,
			claim: "a driver is registered and found by its name, without a kubelet"},
		{name: "create", title: "create, attach, write", run: v.create},
		{name: "expand", title: "expand logs, mounted", run: v.expand,
			claim: "a mounted XFS grew online, and the new space is usable"},
	}
}

func (d *demo) endpoint() string     { return "unix://" + d.path("csi", "csi.sock") }
func (d *demo) hostEndpoint() string { return "unix://" + d.path("host", "host.sock") }

// kept returns commands to try after --keep.
func (d *demo) kept() string {
	cleat, host := d.program("cleat"), d.hostEndpoint()
	return fmt.Sprintf(`
Host and driver still run; the volumes are attached below %[1]s/volumes. Try as root:

  at="--driver %[2]s --host %[3]s --state-dir %[1]s/client"
  %[4]s plugins list --host %[3]s
  %[4]s volume list $at
  %[4]s volume create mine --size 400MiB --fs-type xfs $at
  %[4]s volume attach mine /mnt $at
  %[4]s volume changed-blocks %[5]s %[6]s $at

Remove everything again:

  %[4]s-demo --remove %[1]s
`, d.dir, driverName, host, cleat, rawBefore, rawAfter)
}

// target is the path at which a volume is attached.
func (v *volumes) target(name string) string { return v.path("volumes", name) }

func xfs() *client.Capability       { return &client.Capability{FSType: "xfs"} }
func thick() map[string]string      { return map[string]string{"provisioning": "thick"} }
func size(n int64) volume.SizeRange { return volume.SizeRange{Required: n} }

// server starts a server that --keep leaves running.
func (v *volumes) server(what string, args ...string) *process {
	cmd := v.command("cleat", append(args, "--log-format", "text")...)
	if v.keep {
		cmd.SysProcAttr.Pdeathsig = 0
	}
	return v.start(what, cmd)
}

func (v *volumes) startHost(ctx context.Context) string {
	v.host = v.server("host", "host", "--plugins-dir", v.path("plugins"), "--socket", v.hostEndpoint(), "--output", "none")
	eventually(ctx, func() (err error) {
		v.plugins, err = remote.Dial(ctx, v.hostEndpoint())
		return err
	})
	known := must(v.plugins.List(ctx, "", ""))
	want(len(known) == 0, "the directory is new, but the host lists %+v", known)
	return "watches " + v.path("plugins")
}

func (v *volumes) startDriver() {
	v.driver = v.server("driver", "csi", "--endpoint", v.endpoint(), "--pool", v.path("pool"), "--pool-image", fmt.Sprint(int64(v.size)),
		"--state-dir", v.path("state"), "--overprovision-ratio", "8", "--driver-name", driverName, "--registration-dir", v.path("plugins"), "--node-id", "demo")
}

func (v *volumes) startFirst(ctx context.Context) string {
	v.startDriver()
	driver := must(v.dial(ctx, v.endpoint()))
	defer driver.Close()
	i := driver.Info()
	return fmt.Sprintf("%s %s announces %d capabilities", i.Name, i.Version, len(i.Plugin)+len(i.Controller)+len(i.Group)+len(i.NodeRPCs))
}

func (v *volumes) dial(ctx context.Context, endpoint string) (*client.Driver, error) {
	return client.Dial(ctx, client.Config{Endpoint: endpoint, StateDir: v.path("client"), Patience: startTimeout})
}

// register looks the driver up by its name and connects to the endpoint found.
func (v *volumes) register(ctx context.Context) string {
	p := must(v.plugins.Wait(ctx, driverType, driverName, startTimeout))
	want("unix://"+p.Endpoint == v.endpoint(), "the host lists %s as %+v, want endpoint %s", driverName, p, v.endpoint())
	v.client = must(v.dial(ctx, p.Endpoint))
	v.free = must(v.client.Capacity(ctx, *xfs(), thick())).Available
	return fmt.Sprintf("registered as %s %s after its socket appeared", p.Type, short(p.Since.Sub(p.Found).Seconds()))
}

// create creates two volumes, attaches them, and writes the same files to both.
func (v *volumes) create(ctx context.Context) string {
	for _, name := range []string{data, logs} {
		request := client.CreateRequest{Name: name, Size: size(volumeSize), Capability: xfs()}
		created, again := must(v.client.Create(ctx, request)), must(v.client.Create(ctx, request))
		want(created.Size == volumeSize && again.ID == created.ID, "volume %s: created %+v, but the same request returned %+v", name, created, again)
		v.attach(ctx, name)
		e, mounted, err := mount.At(ctx, v.target(name))
		want(err == nil && mounted && e.FSType == "xfs" && !e.ReadOnly(), "no writable XFS is mounted at %s: %v, %+v, %v", v.target(name), mounted, e, err)
		v.files = must(writeTree(v.target(name), 0, fileCount, 20*mib))
	}
	return fmt.Sprintf("%s and %s, XFS, %s each, mounted; requested twice, created once; %d files in each", data, logs, human(volumeSize), fileCount)
}

func (v *volumes) attach(ctx context.Context, name string) {
	must(v.client.Attach(ctx, client.AttachRequest{Volume: name, Target: v.target(name)}))
}

// detach retries like an orchestrator: a container that starts can hold a copy
// of the mount for a moment.
func (v *volumes) detach(ctx context.Context, name string) error {
	return retry.For(ctx, 10*time.Second, func() (bool, error) {
		err := v.client.Detach(ctx, name, "")
		return errors.Is(err, errs.Precondition), err
	})
}

// expand grows a mounted volume and allocates a file that did not fit before.
func (v *volumes) expand(ctx context.Context) string {
	dir := v.target(logs)
	before := must(fsinfo.UsageOf(ctx, dir)).Bytes.Available
	must(v.client.Expand(ctx, logs, size(expandedSize)))
	after := must(fsinfo.UsageOf(ctx, dir)).Bytes.Available
	want(after-before >= (expandedSize-volumeSize)*9/10, "the volume grew by %d bytes, its free space by %d", int64(expandedSize-volumeSize), after-before)
	f := must(os.Create(filepath.Join(dir, "large")))
	err := unix.Fallocate(int(f.Fd()), 0, 0, before+(expandedSize-volumeSize)/2)
	check(errors.Join(err, f.Close(), os.Remove(f.Name())))
	check(v.files.verify(dir))
	return fmt.Sprintf("%s free before, %s free now", human(before), human(after))
}
