package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	dpuclient "github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/volume/access"
)

// DPU says with which SNAP the chapter on DPU devices is walked. It is left out
// when there is neither a Double nor a Socket.
type DPU struct {
	// Double is the program of the test double of SNAP.
	Double string
	// Socket is that of a SNAP process which is there, in place of the double.
	// Nothing is killed, restarted or shown to a host then.
	Socket string
	// Target is a subsystem with one namespace, for Socket; nil is none.
	Target *access.NVMe
	// LeftOut says why there is neither.
	LeftOut string
}

func (d DPU) walked() bool { return d.Double != "" || d.Socket != "" }

// against is what the chapter runs against, for whoever reads its results.
func (d DPU) against() string {
	if d.Socket != "" {
		return "the SNAP process on " + d.Socket
	}
	return "the test double of SNAP"
}

// heading is the chapter's first line.
func (d DPU) heading() string {
	if d.Socket != "" {
		return "DPU devices, against " + d.against() + "; nothing is killed or restarted there, and no host sees them."
	}
	return "DPU devices, against " + d.against() + ": it answers as SNAP does, and moves no data. --snap-socket names a real one."
}

// leftOut says that the chapter is left out, and why, or is empty.
func (d DPU) leftOut() string {
	if d.walked() || d.LeftOut == "" {
		return ""
	}
	return "The chapter on DPU devices is left out: " + d.LeftOut + "."
}

// chapter is what is walked.
func (d DPU) chapter() []step {
	if !d.walked() {
		return nil
	}
	all := []step{
		{name: "dpu-start", title: "start the DPU plugin", run: dpuStart},
		{name: "dpu-create", title: "make DPU devices", run: dpuCreate,
			claim: "a device asked for twice is made once, and volumes of one subsystem share its controller"},
	}
	if d.Socket == "" {
		all = append(all,
			step{name: "dpu-kill", title: "kill -9 the DPU plugin", run: dpuKill,
				claim: "a device that kill -9 left half-made is taken back by the next start, and the others are untouched"},
			step{name: "dpu-restart", title: "restart SNAP", run: dpuRestart,
				claim: "after a restart of SNAP no device is there until it is asked for, and then it has its name again"})
	}
	all = append(all, step{name: "dpu-delete", title: "delete the DPU devices", run: dpuDelete,
		claim: "deleted devices leave nothing in SNAP and no mount"})
	all[0].chapter = d.heading()
	for i := range all {
		all[i].against = d.against()
	}
	return all
}

// dpuState is what the steps of the chapter know of each other.
type dpuState struct {
	plugin, double *process
	client         *dpuclient.Client
	offers         dpuclient.Capabilities
	devices        []*dpuDevice
	before         []string // what SNAP held at the start
}

type dpuDevice struct {
	request dpuclient.Create
	name    string
}

const (
	dpuPool   = "3f6a2f0e-5a55-4a3c-9f5e-2d1c9f0a7b22"
	dpuFile   = "disk.img"
	dpuShare  = "share"
	dpuShared = "demo-share" // its volume
	dpuLetter = "letter"     // a file in it
	dpuText   = "what the host's directory holds"

	dpuTarget = "192.0.2.10" // of RFC 5737: no machine has it
	dpuPort   = 4420
	dpuNQN    = "nqn.2026-01.dev.cleat:demo"
	// dpuLateNQN is a subsystem whose namespace does not come while anybody waits.
	dpuLateNQN = "nqn.2026-01.dev.cleat:demo-late"
	dpuLate    = "demo-late"
	// readWriteOnce is ACCESS_MODE_RWO.
	readWriteOnce = 1
)

func dpuUUID(nsid int) string { return fmt.Sprintf("e33a8f79-5f83-40cc-b7d5-cc0aab47b9%02d", nsid) }

func (w *walk) dpuPath(name ...string) string {
	return filepath.Join(append([]string{w.dir, "dpu"}, name...)...)
}
func (w *walk) pluginSocket() string { return w.dpuPath("plugin", "dpu.sock") }
func (w *walk) doubleSocket() string { return w.dpuPath("snap", "snap.sock") }
func (w *walk) snapSocket() string {
	if w.config.DPU.Socket != "" {
		return w.config.DPU.Socket
	}
	return w.doubleSocket()
}

func (w *walk) dpuFlags() []string {
	return []string{
		"dpu", "--plugin-name", "cleat-demo", "--provider-name", "cleat-demo", "--plugin-socket", w.pluginSocket(), "--snap-socket", w.snapSocket(),
		"--volume-dir", w.dpuPath("volumes"), "--state-dir", w.dpuPath("state"), "--pool", dpuPool + "=" + w.dpuPath("pool"),
		"--node", "cleat-demo", "--log-format", "text",
	}
}

// dpuScene is the network around the double.
func dpuScene() string {
	subsystem := func(nqn string, namespaces ...string) string {
		return fmt.Sprintf(`{"nqn": %q, "addresses": ["TCP,%s,%d"], "namespaces": [%s]}`, nqn, dpuTarget, dpuPort, strings.Join(namespaces, ", "))
	}
	namespace := func(nsid int, more string) string {
		return fmt.Sprintf(`{"nsid": %d, "uuid": %q, "bytes": %d%s}`, nsid, dpuUUID(nsid), gib, more)
	}
	return `{"subsystems": [` + subsystem(dpuNQN, namespace(1, ""), namespace(2, "")) + ", " + subsystem(dpuLateNQN, namespace(3, `, "after": "1h"`)) + `]}`
}

// dpuWanted are the devices to be made, as far as SNAP can have them.
func (w *walk) dpuWanted() []*dpuDevice {
	var all []*dpuDevice
	if w.dpu.offers.Block {
		switch target := w.config.DPU.Target; {
		case w.config.DPU.Socket == "":
			all = append(all, blockDevice("demo-one", dpuNamespace(dpuNQN, 1)), blockDevice("demo-two", dpuNamespace(dpuNQN, 2)))
		case target != nil:
			all = append(all, blockDevice("demo-one", *target))
		}
		all = append(all, blockDevice("demo-file", access.File{Pool: dpuPool, Name: dpuFile}))
	}
	if w.dpu.offers.Filesystem {
		all = append(all, newDPUDevice(dpuShared, access.File{Pool: dpuPool, Name: dpuShare}))
	}
	return all
}

func dpuNamespace(nqn string, nsid uint32) access.NVMe {
	at := netip.AddrPortFrom(netip.MustParseAddr(dpuTarget), dpuPort)
	return access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{at}, NQN: nqn, NSID: nsid}
}

func blockDevice(volume string, a access.Access) *dpuDevice {
	d := newDPUDevice(volume, a)
	d.request.Mode = "Block"
	return d
}

// newDPUDevice is that of a file system, as the contract has it where no mode
// is given.
func newDPUDevice(volume string, a access.Access) *dpuDevice {
	d := &dpuDevice{request: dpuclient.Create{Volume: volume}}
	d.request.Modes = append(d.request.Modes, readWriteOnce)
	d.request.Contexts.Volume = access.Encode(a)
	return d
}

// dpuStart starts the double, unless there is a SNAP, and the plugin.
func dpuStart(ctx context.Context, w *walk) (string, error) {
	if err := w.dpuPrepare(); err != nil {
		return "", err
	}
	w.dpu = &dpuState{}
	if w.config.DPU.Socket == "" {
		if err := w.startDouble(); err != nil {
			return "", err
		}
	}
	err := retry.For(ctx, startBound, func() (again bool, err error) {
		w.dpu.before, err = w.snapHolds(ctx)
		return err != nil && w.config.DPU.Socket == "", err
	})
	if err != nil {
		return "", err
	}
	ready, err := w.startPlugin(ctx)
	if err != nil {
		return "", err
	}
	info, err := w.dpu.client.Info(ctx)
	if err != nil {
		return "", err
	}
	if w.dpu.offers, err = w.dpu.client.Capabilities(ctx); err != nil {
		return "", err
	}
	if len(w.dpuWanted()) == 0 || !w.dpu.offers.Get || !w.dpu.offers.List {
		return "", fmt.Errorf("the plugin of this SNAP announces %q, which is too little for a demo", w.dpu.offers.All)
	}
	var words []string
	if w.dpu.offers.Block {
		words = append(words, "block devices")
	}
	if w.dpu.offers.Filesystem {
		words = append(words, "file systems")
	}
	return fmt.Sprintf("%s %s serves %s; it asked SNAP and was ready after %s", info.Name, info.Version, strings.Join(words, " and "), short(ready)), nil
}

// dpuPrepare lays out directories, the pool and the network.
func (w *walk) dpuPrepare() error {
	for _, dir := range []string{w.dpuPath("pool", dpuShare), w.dpuPath("snap")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	disk, err := os.Create(w.dpuPath("pool", dpuFile))
	if err != nil {
		return err
	}
	return errors.Join(disk.Truncate(64*mib), disk.Close(),
		os.WriteFile(w.dpuPath("pool", dpuShare, dpuLetter), []byte(dpuText), 0o600),
		os.WriteFile(w.dpuPath("scene.json"), []byte(dpuScene()), 0o600))
}

// startDouble starts the test double. It ends with the demo whatever is kept.
func (w *walk) startDouble() (err error) {
	cmd := command(w.config.DPU.Double, "cleat-snap-double", "-socket", w.doubleSocket(), "-snap", "-fork", "-scene", w.dpuPath("scene.json"))
	orders, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if w.dpu.double, err = w.startCommand("double of SNAP", cmd, false); w.dpu.double != nil {
		w.dpu.double.orders = orders
	}
	return err
}

// startPlugin starts the plugin and waits until it says that it is ready, and
// returns how long that took.
func (w *walk) startPlugin(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	var err error
	if w.dpu.plugin, err = w.startCommand("DPU plugin", command(w.config.Program, "cleat", w.dpuFlags()...), false); err != nil {
		return 0, err
	}
	err = retry.For(ctx, startBound, func() (again bool, err error) {
		c, err := dpuclient.Dial(ctx, w.pluginSocket())
		if err != nil {
			return errors.Is(err, dpuclient.ErrNobody), err
		}
		ready, _, err := c.Probe(ctx)
		if err == nil && ready {
			w.dpu.client = c
			return false, nil
		}
		if err == nil {
			err = errors.New("the DPU plugin says that it is not ready")
		}
		return true, errors.Join(err, c.Close())
	})
	return time.Since(began), err
}

// endPlugin ends the plugin in one way or the other, and the connection to it.
func (w *walk) endPlugin(end func(*process) error) error {
	err := end(w.dpu.plugin)
	if w.dpu.client != nil {
		_ = w.dpu.client.Close() // which the end may have broken
		w.dpu.client = nil
	}
	return err
}

// release takes the devices out of a SNAP process that outlives the demo, with a
// new plugin: the one that is there may be dying. It returns what could not be
// taken away, in words.
func (w *walk) release(ctx context.Context) (left []string) {
	if w.dpu == nil || w.config.DPU.Socket == "" || len(w.dpu.devices) == 0 {
		return nil
	}
	again := w.endPlugin(func(p *process) error { return p.end(terminate) })
	if again == nil {
		_, again = w.startPlugin(ctx)
	}
	for _, d := range w.dpu.devices {
		err := again
		if err == nil {
			err = w.dpu.client.Delete(ctx, d.request.Volume, "")
		}
		if err != nil {
			left = append(left, fmt.Sprintf("device %q of %s in %s: %v", d.name, d.request.Volume, w.config.DPU.against(), err))
		}
	}
	return left
}

// processes are those of the walk, in the order in which they end.
func (w *walk) processes() []*process {
	all := []*process{w.driver, w.host}
	if w.dpu != nil {
		all = append([]*process{w.dpu.plugin, w.dpu.double}, all...)
	}
	if w.sriov != nil {
		all = append([]*process{w.sriov.daemon, w.sriov.plugin, w.sriov.double}, all...)
	}
	return slices.DeleteFunc(all, func(p *process) bool { return p == nil })
}

// death is that of the first process which ended unasked.
func (w *walk) death() error {
	var errs []error
	for _, p := range w.processes() {
		errs = append(errs, p.death())
	}
	return errors.Join(errs...)
}
