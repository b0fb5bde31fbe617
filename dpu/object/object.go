// Package object creates, inspects and removes the objects of devices: bdevs,
// controllers, keys and file system devices of the SNAP process, and mounts of
// the machine. All calls are idempotent. It keeps no state: it always queries
// the process.
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

// Mounts mounts file systems on the machine for SNAP.
type Mounts interface {
	// Path is the same for the machine and for SNAP.
	Path(name string) string
	Mount(ctx context.Context, name string, spec plan.MountSpec) error
	Mounted(ctx context.Context, name string, spec plan.MountSpec) (bool, error)
	// IsMountPoint reports whether anything is mounted at Path(name).
	IsMountPoint(ctx context.Context, name string) (bool, error)
	Unmount(ctx context.Context, name string) error
}

// Pools resolves files in pools.
type Pools interface {
	File(f access.File) (path string, err error)
}

// TCP selects the name of the TCP transport.
type TCP string

// NVIDIA's alias reaches the same targets with another network stack.
const (
	TCPAuto     TCP = "auto" // NVDA_TCP first if the process is SNAP, else TCP
	TCPUpstream TCP = "TCP"
	TCPNVIDIA   TCP = "NVDA_TCP"
)

// Config configures a Manager. RPC is required.
type Config struct {
	RPC     *spdk.Client
	Mounts  Mounts // nil: no file systems
	Pools   Pools  // nil: no files
	KeyDir  string // of key files, in the mount namespace of SNAP; "": no keys
	CephDir string // of <clusterID>.conf files, in the mount namespace of SNAP; "": none
	TCP     TCP    // "" is TCPAuto
	// AIOBlockSize of bdevs on files, in bytes; 0 is 4096. Block devices keep
	// their own.
	AIOBlockSize int
	// AttachTimeout per path. SNAP needs 10 s for a silent target, two minutes
	// if packets are lost. 0 is 150 s.
	AttachTimeout time.Duration
	// NamespaceWait: how long a namespace can appear after its controller. 0 is
	// 5 s.
	NamespaceWait time.Duration
	Logger        *slog.Logger
}

// Manager manages the objects of one SNAP process. It is safe for concurrent use.
type Manager struct {
	config Config

	mu         sync.Mutex
	tcp        string // transport name that works with this process
	generation uint64 // of the process that tcp applies to
}

// New returns a Manager. Errors: errs.Invalid.
func New(c Config) (*Manager, error) {
	switch c.TCP {
	case "":
		c.TCP = TCPAuto
	case TCPAuto, TCPUpstream, TCPNVIDIA:
	default:
		return nil, errs.Errorf(errs.Invalid, "unknown TCP transport %q: use auto, TCP or NVDA_TCP", c.TCP)
	}
	if c.RPC == nil {
		return nil, errs.Errorf(errs.Invalid, "RPC is required")
	}
	if c.AIOBlockSize == 0 {
		c.AIOBlockSize = 4096
	}
	if c.AIOBlockSize < 512 || c.AIOBlockSize > 64<<10 || c.AIOBlockSize&(c.AIOBlockSize-1) != 0 {
		return nil, errs.Errorf(errs.Invalid, "invalid block size of %d bytes: use a power of two from 512 to 65536", c.AIOBlockSize)
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
	return &Manager{config: c}, nil
}

// Outcome is the result of Ensure.
type Outcome struct {
	// Found: the object existed before, under its own name.
	Found bool
	// Bdevs of a newly attached controller, as far as SNAP reported them.
	Bdevs []string
	// PathsMissing: see AttachMissing.
	PathsMissing bool
	// Foreign: another program created the object, as ForeignName.
	Foreign     bool
	ForeignName string
}

// ErrNameConflict: another object has the name, and must not be removed.
var ErrNameConflict = errors.New("the name is used by another object")

// Attaching is called before each attach of a path; its failure prevents the
// attach. It is optional.
type Attaching func(ctx context.Context, path netip.AddrPort) error

// Ensure creates an object, or checks an existing one. The error matches
// spdk.Unanswered if the object can still appear; only the last attach is
// unanswered then.
func (m *Manager) Ensure(ctx context.Context, o plan.Object, attaching Attaching) (Outcome, error) {
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
		err = errs.Errorf(errs.Internal, "unknown object kind %q", o.Kind)
	}
	return Outcome{Found: found}, err
}

// Remove is idempotent. errs.Precondition: a host can still see the object.
func (m *Manager) Remove(ctx context.Context, o plan.Object) error {
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

// cannotExist reports whether the process lacks the method that removes a kind,
// and so has no such objects.
func (m *Manager) cannotExist(ctx context.Context, o plan.Object, err error) bool {
	if !errors.Is(err, spdk.UnknownMethod) {
		return false
	}
	m.config.Logger.DebugContext(ctx, "object kind not supported by SNAP, nothing to remove", "object", o.ID.String())
	return true
}

func (m *Manager) keyPath(file string) (string, error) {
	if m.config.KeyDir == "" {
		return "", errs.Errorf(errs.Precondition, "no key directory for key %q: start the plugin with --key-dir", file)
	}
	return filepath.Join(m.config.KeyDir, file), nil
}
