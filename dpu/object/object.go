// Package object makes, looks at and removes the objects that devices are made
// of: bdevs, controllers, keys and file system devices of the SNAP process, and
// mounts of the machine. Every call may be repeated. It remembers nothing of
// them; what a process holds is asked of the process.
package object

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume/access"
)

// Mounts are the file systems that the machine mounts for SNAP.
type Mounts interface {
	// Path is where a mount is, for the machine and for SNAP.
	Path(name string) string
	Mount(ctx context.Context, name string, spec plan.MountSpec) error
	Mounted(ctx context.Context, name string, spec plan.MountSpec) (bool, error)
	Unmount(ctx context.Context, name string) error
}

// Pools find files in pools.
type Pools interface {
	File(f access.File) (path string, err error)
}

// TCP says under which name the transport over TCP is asked for.
type TCP string

// The names: NVIDIA's alias reaches the same targets by another stack.
const (
	TCPAuto     TCP = "auto" // the alias first where SNAP is, and else the other
	TCPUpstream TCP = "TCP"
	TCPNVIDIA   TCP = "NVDA_TCP"
)

// Config says how objects are made. RPC is needed.
type Config struct {
	RPC     *spdk.Client
	Mounts  Mounts // nil: no file systems
	Pools   Pools  // nil: there are none
	KeyDir  string // of keys, as SNAP sees it; "": there are none
	CephDir string // of <clusterID>.conf, as SNAP sees it; "": there is none
	TCP     TCP    // "" is TCPAuto
	// AIOBlockSize is that of bdevs on files, in bytes; 0 is 4096. A block
	// device keeps its own.
	AIOBlockSize int
	// AttachTimeout bounds the attach of one path. A silent target takes SNAP
	// 10 s, and one whose packets are lost two minutes. 0 is 150 s.
	AttachTimeout time.Duration
	// NamespaceWait is how long a namespace may come after its controller. 0 is
	// 5 s.
	NamespaceWait time.Duration
	Logger        *slog.Logger // nil: no log
}

// Maker makes objects in one SNAP process. It may be used by several goroutines.
type Maker struct {
	config Config

	mu         sync.Mutex
	tcp        string // the name that this process was found to know
	generation uint64 // of the process that was
}

// New makes a Maker. Errors: errs.Invalid.
func New(c Config) (*Maker, error) {
	switch c.TCP {
	case "":
		c.TCP = TCPAuto
	case TCPAuto, TCPUpstream, TCPNVIDIA:
	default:
		return nil, errs.Errorf(errs.Invalid, "the transport %q is none over TCP: give auto, TCP or NVDA_TCP", c.TCP)
	}
	if c.RPC == nil {
		return nil, errs.Errorf(errs.Invalid, "objects cannot be made without a SNAP process")
	}
	if c.AIOBlockSize == 0 {
		c.AIOBlockSize = 4096
	}
	if c.AIOBlockSize < 512 || c.AIOBlockSize > 64<<10 || c.AIOBlockSize&(c.AIOBlockSize-1) != 0 {
		return nil, errs.Errorf(errs.Invalid, "a block size of %d bytes is not possible: give a power of two from 512 to 65536", c.AIOBlockSize)
	}
	if c.AttachTimeout == 0 {
		c.AttachTimeout = 150 * time.Second
	}
	if c.NamespaceWait == 0 {
		c.NamespaceWait = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Maker{config: c}, nil
}

// Outcome is how an object came to be there.
type Outcome struct {
	// Found: it was there already, under its own name.
	Found bool
	// Bdevs are those of a controller that was just attached, as far as SNAP
	// told; they need not be asked for.
	Bdevs []string
	// PathsMissing: a controller lacks paths, see AttachMissing.
	PathsMissing bool
	// Foreign: somebody else had made it, under the name As.
	Foreign bool
	As      string
}

// ErrTaken: what is there under the name of an object is something else, so it
// is not to be removed in its stead.
var ErrTaken = errors.New("somebody else took its name")

// Attaching is called before each attach of a path. On an error the attach is
// not sent. It may be nil.
type Attaching func(ctx context.Context, path netip.AddrPort) error

// Make sees to it that an object is there as it should be; what is there
// already is checked and kept. The error Is spdk.Unanswered when the object may
// come all the same; only the last attach is without an answer then.
func (m *Maker) Make(ctx context.Context, o plan.Object, attaching Attaching) (Outcome, error) {
	if o.Kind == plan.Controller {
		return m.makeController(ctx, o, attaching)
	}
	var found bool
	var err error
	switch o.Kind {
	case plan.Key:
		found, err = m.makeKey(ctx, o)
	case plan.AIO:
		found, err = m.makeAIO(ctx, o)
	case plan.RBD:
		found, err = m.makeRBD(ctx, o)
	case plan.RBDCluster:
		found, err = m.makeRBDCluster(ctx, o)
	case plan.Mount:
		found, err = m.makeMount(ctx, o)
	case plan.AIOFsdev:
		found, err = m.makeFsdev(ctx, o)
	default:
		err = errs.Errorf(errs.Internal, "there are no objects of kind %q", o.Kind)
	}
	return Outcome{Found: found}, err
}

// Remove takes an object away. One that is not there is removed. Precondition:
// a host can still see it.
func (m *Maker) Remove(ctx context.Context, o plan.Object) error {
	if err := m.checkHidden(ctx, o); err != nil {
		return err
	}
	var err error
	switch o.Kind {
	case plan.Controller:
		err = m.config.RPC.DetachNVMe(ctx, o.Name, nil)
	case plan.Key:
		err = m.removeKey(ctx, o)
	case plan.AIO:
		err = m.config.RPC.DeleteAIO(ctx, o.Name)
	case plan.RBD:
		err = m.config.RPC.DeleteRBD(ctx, o.Name)
	case plan.RBDCluster:
		err = m.removeRBDCluster(ctx, o.Name)
	case plan.AIOFsdev:
		err = m.config.RPC.DeleteFsdev(ctx, o.Name)
	case plan.Mount:
		if m.config.Mounts == nil {
			return nil
		}
		return m.config.Mounts.Unmount(ctx, o.Name)
	}
	if err != nil && !errors.Is(err, spdk.NotFound) && !m.cannotExist(ctx, o, err) {
		return err
	}
	return nil
}

// cannotExist: a process that has no method to remove a kind has none of it.
func (m *Maker) cannotExist(ctx context.Context, o plan.Object, err error) bool {
	if !errors.Is(err, spdk.UnknownMethod) {
		return false
	}
	m.config.Logger.DebugContext(ctx, "The SNAP process does not know objects of that kind", "object", o.ID.String())
	return true
}

// keyPath is where SNAP finds the file of a key.
func (m *Maker) keyPath(file string) (string, error) {
	if m.config.KeyDir == "" {
		return "", errs.Errorf(errs.Precondition, "key %q is asked for, and there is no directory of keys: start the plugin with --key-dir", file)
	}
	return filepath.Join(m.config.KeyDir, file), nil
}
