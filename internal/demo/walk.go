package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/volume"
)

// The volumes of the walk.
const (
	data     = "data"      // XFS; its files are deleted and come back
	logs     = "logs"      // XFS; it grows, turns thick, and is written to while the driver is killed
	restored = "restored"  // from the snapshot of data
	cloned   = "logs-copy" // from logs
	raw      = "raw"       // a block device
	rawNow   = "raw-now"   // from the second snapshot of raw
)

// walk is what the steps know of each other.
type walk struct {
	config Config
	dir    string
	own    bool   // dir was made here
	log    string // path of the log of driver and host
	marked mark

	host, driver *process
	dpu          *dpuState                               // nil until its chapter
	sriov        *sriovState                             // likewise
	about        string                                  // name and version of the driver
	died         atomic.Pointer[context.CancelCauseFunc] // ends the step at hand when a process ends unasked
	client       *client.Driver

	files map[string]tree // by volume: what its files must hold
	free  int64           // room in the pool before the first volume, in bytes
}

// step is one thing that the walk does and then looks at.
type step struct {
	name  string // a word for programs
	title string // for people
	// claim says for the summary what holding the step proves; empty for
	// steps that only lead to others.
	claim string
	// ends: the step takes away what a walk that keeps all leaves.
	ends bool
	// against is what the step was walked against, where that is not this machine.
	against string
	// chapter is a line to show before the step; empty for all but first ones.
	chapter string
	// run does it. What it returns says what was seen, with figures.
	run func(context.Context, *walk) (proved string, err error)
}

// proves is the claim, with what it was seen on.
func (s step) proves() string {
	if s.against == "" {
		return s.claim
	}
	return "against " + s.against + ": " + s.claim
}

// steps are those on volumes, with the chapters on DPU devices and on SR-IOV
// functions before the end.
func steps(d DPU, s SRIOV) []step {
	return slices.Concat(volumeSteps(), d.chapter(), s.chapter(), lastSteps(d.walked() || s.walked()))
}

func volumeSteps() []step {
	return []step{
		{name: "host", title: "start a host of plugins", run: startHost},
		{name: "start", title: "start the driver", run: start},
		{name: "register", title: "find it by its name", run: register,
			claim: "a driver that starts is found, registered, and reached by its name, without a kubelet"},
		{name: "create", title: "create two volumes", run: create},
		{name: "attach", title: "attach both", run: attach},
		{name: "write", title: "write files", run: write},
		{name: "stats", title: "ask how full they are", run: stats},
		{name: "snapshot", title: "snapshot data", run: snapshot},
		{name: "remove", title: "delete all files of data", run: remove},
		{name: "restore", title: "restore to a new volume", run: restore,
			claim: "deleted files came back from the snapshot, byte for byte, in a larger volume"},
		{name: "clone", title: "clone logs", run: clone,
			claim: "a clone holds the same bytes, and writing to it leaves the original alone"},
		{name: "expand", title: "expand logs, mounted", run: expand,
			claim: "a mounted XFS grew under its user, and the new room is real"},
		{name: "blocks", title: "list changed blocks", run: blocks,
			claim: "the first snapshot of a device plus its changed blocks is the second, byte for byte"},
		{name: "group", title: "snapshot both at once", run: group,
			claim: "a group snapshot is one moment of two volumes that are being written to"},
		{name: "health", title: "ask how healthy they are", run: health,
			claim: "a volume that the kernel made read-only is reported, and only that one"},
		{name: "modify", title: "make logs thick, and thin", run: modify,
			claim: "a thick volume has all its blocks, and gives them back when it is thin again"},
		{name: "kill", title: "kill -9 the driver", run: kill,
			claim: "kill -9 in the middle of calls lost nothing acknowledged, and the writer on the volume went on"},
	}
}

// lastSteps take everything away. They get a heading where other chapters stand
// between them and the volumes.
func lastSteps(between bool) []step {
	chapter := ""
	if between {
		chapter = "The end of the volumes."
	}
	return []step{
		{name: "detach", title: "detach everything", run: detach, ends: true, chapter: chapter},
		{name: "delete", title: "delete everything", run: deleteAll, ends: true},
		{name: "stop", title: "stop driver and host", run: stop, ends: true},
		{name: "leave", title: "take the pool away", run: leave, ends: true,
			claim: "nothing is left behind: no mount, no loop device, no file"},
	}
}

// newWalk makes the directory.
func newWalk(config Config) (*walk, error) {
	w := &walk{config: config, files: map[string]tree{}}
	if err := w.makeDir(); err != nil {
		return nil, err
	}
	w.marked.Own = w.own
	w.log = filepath.Join(w.dir, logName)
	if err := w.check(); err != nil {
		return nil, errors.Join(err, w.dropDir())
	}
	return w, nil
}

func (w *walk) makeDir() error {
	var err error
	if w.config.Dir == "" {
		w.own = true
		if w.dir, err = os.MkdirTemp("/var/tmp", "cleat-demo-"); err != nil {
			return fmt.Errorf("%w; name a directory on another disk with --dir", err)
		}
	} else {
		switch err := os.Mkdir(w.config.Dir, 0o700); {
		case err == nil:
			w.own = true
		case !errors.Is(err, fs.ErrExist):
			return fmt.Errorf("--dir: %w", err)
		}
		w.dir = w.config.Dir
	}
	if w.dir, err = filepath.Abs(w.dir); err != nil {
		return err
	}
	// The kernel lists mounts by their real paths.
	w.dir, err = filepath.EvalSymlinks(w.dir)
	return err
}

// check refuses a place in which the walk could not come to its end.
func (w *walk) check() error {
	entries, err := os.ReadDir(w.dir)
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("--dir %s is not empty (it holds %q): give a new or an empty directory", w.dir, entries[0].Name())
	}
	const longest = 107 // bytes that the kernel takes as the path of a socket
	endpoints := []string{w.endpoint(), w.hostEndpoint(), w.registration(), w.pluginSocket(), w.doubleSocket()}
	if w.config.SRIOV.walked() {
		endpoints = append(endpoints, w.devicePluginSocket()) // the longest of its chapter
	}
	for _, endpoint := range endpoints {
		socket, err := unixsock.ParseEndpoint(endpoint)
		if err != nil {
			return fmt.Errorf("--dir: %w", err)
		}
		if len(socket) > longest {
			return fmt.Errorf("--dir %s is too deep: a socket below it has a path of %d bytes, at most %d are possible", w.dir, len(socket), longest)
		}
	}
	return checkRoom(w.dir, w.config.Size)
}

func (w *walk) dropDir() error {
	if !w.own {
		return nil
	}
	return os.Remove(w.dir)
}

func (w *walk) endpoint() string     { return "unix://" + filepath.Join(w.dir, "csi", "csi.sock") }
func (w *walk) hostEndpoint() string { return "unix://" + filepath.Join(w.dir, "host", "host.sock") }
func (w *walk) registration() string { return filepath.Join(w.plugins(), driverName+"-reg.sock") }
func (w *walk) plugins() string      { return filepath.Join(w.dir, "plugins") }
func (w *walk) clientState() string  { return filepath.Join(w.dir, "client") }
func (w *walk) pool() string         { return filepath.Join(w.dir, "pool") }

// target is where a volume is attached.
func (w *walk) target(name string) string { return filepath.Join(w.dir, "volumes", name) }

// attach makes a volume appear at its target.
func (w *walk) attach(ctx context.Context, name string) error {
	_, err := w.client.Attach(ctx, client.AttachRequest{Volume: name, Target: w.target(name)})
	return err
}

// copyOf makes a volume from a snapshot and attaches it.
func (w *walk) copyOf(ctx context.Context, name, snapshot string, size int64) error {
	_, err := w.client.Create(ctx, client.CreateRequest{Name: name, FromSnapshot: snapshot, Size: volume.SizeRange{Required: size}})
	if err != nil {
		return err
	}
	return w.attach(ctx, name)
}

// discard detaches and deletes a volume that has served its purpose.
func (w *walk) discard(ctx context.Context, name string) error {
	if err := detachFrom(ctx, w.client, name); err != nil {
		return err
	}
	return w.client.Delete(ctx, name)
}

// detachFrom takes a volume off all its places. Others on this machine may hold
// it for a moment, such as a container that starts with a copy of all mounts;
// an orchestrator would try again as well.
func detachFrom(ctx context.Context, driver *client.Driver, name string) error {
	const bound = 10 * time.Second
	return retry.For(ctx, bound, func() (bool, error) {
		err := driver.Detach(ctx, name, "")
		return errors.Is(err, errs.Precondition), err
	})
}

// timed measures one call.
func timed(do func() error) (time.Duration, error) {
	started := time.Now()
	err := do()
	return time.Since(started), err
}
