// Package sock ends the TCP sessions of fenced clients with storage servers of
// this machine that do not implement fencing.
//
// The guarantee, provided that a packet filter already blocks the clients:
// after End returns nil, no process has the socket of such a session open. The
// server can have read bytes before that, and what it does with them is outside
// the guarantee. A server inside the kernel (nvmet, LIO, nfsd) has no process
// that shows when it is done: see Config.KernelTargets. The same applies to a
// process that cannot be inspected, because it is in another PID namespace or
// more privileged.
package sock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/ports"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/internal/linux/sockdiag"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

// Config configures Sockets.
type Config struct {
	// Ports are the servers' ports. For all ports, connections from servers of
	// this machine to fenced clients are included.
	Ports ports.Set
	// KernelTargets assumes that a connection without a visible process is
	// served by the kernel, and treats it as ended when its socket is
	// destroyed. The target can still execute a command that it has already
	// received. Without KernelTargets such a session cannot be ended.
	KernelTargets bool
	Logger        *slog.Logger // nil: no log
}

// Sockets lists and ends the TCP sessions of this network namespace.
type Sockets struct {
	config Config
	conn   *sockdiag.Conn
	boot   string
	// namespace is the cookie of the network namespace; zero if closed sockets
	// that processes still have open cannot be found.
	namespace uint64
	// destroyErr is nil if the kernel can destroy sockets.
	destroyErr error
}

// Status is the support of the kernel.
type Status struct {
	// Destroys is whether sessions can be ended; otherwise End only waits for
	// them.
	Destroys bool   `json:"destroys"`
	Detail   string `json:"detail,omitempty"` // why not; empty if supported
}

// Open checks the kernel's support. Close must be called. It fails if End could
// never verify that a session has ended: without sock_diag or /proc.
func Open(ctx context.Context, config Config) (*Sockets, error) {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	conn, err := sockdiag.Dial()
	if err != nil {
		return nil, errs.Errorf(errs.Internal, "list TCP sockets: %w", err)
	}
	s := &Sockets{config: config, conn: conn, boot: boot}
	if err := s.probe(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

func (s *Sockets) probe(ctx context.Context) error {
	if _, err := s.conn.TCP(); err != nil {
		return errs.Errorf(errs.Internal, "list TCP sockets: %w", err)
	}
	_, hidden, err := sockfd.Holders(ctx, nil)
	if err != nil {
		return inspectError(err)
	}
	if len(hidden) > 0 {
		s.config.Logger.WarnContext(ctx, "cannot read open files of some processes, their sessions appear to belong to the kernel", "pid", named(hidden))
	}
	if err := sockfd.CanTakeDescriptors(); err != nil {
		s.config.Logger.WarnContext(ctx, "cannot find closed sessions that a process still has open", "err", err)
	} else if s.namespace, err = s.conn.Namespace(); err != nil {
		return errs.Errorf(errs.Internal, "list TCP sockets: %w", err)
	}
	if s.destroyErr = s.conn.CanDestroy(); s.destroyErr != nil {
		s.config.Logger.WarnContext(ctx, "kernel cannot destroy sockets, sessions of fenced clients can only be waited for", "err", s.destroyErr)
	}
	return nil
}

// Close releases the netlink socket. No other call can be in flight.
func (s *Sockets) Close() error { return s.conn.Close() }

// Status returns the result of Open's checks.
func (s *Sockets) Status() Status {
	if s.destroyErr != nil {
		return Status{Detail: s.destroyErr.Error()}
	}
	return Status{Destroys: true}
}

// Sessions lists the connections from the blocks to the ports, as
// volume.Fencer. It includes closed connections that a process still has open,
// since the process can read the received bytes. It excludes sockets that their
// server has closed and that only wait for the client's acknowledgement: no
// process can read from them.
func (s *Sockets) Sessions(ctx context.Context, blocks []netip.Prefix) ([]volume.Session, error) {
	fenced, err := cidr.Set(blocks)
	if err != nil || len(blocks) == 0 {
		return nil, err
	}
	ours := func(local, remote netip.AddrPort) bool {
		return fenced.Contains(remote.Addr()) && s.config.Ports.Contains(local.Port())
	}
	all, err := s.sockets()
	if err != nil {
		return nil, err
	}
	var found []sockdiag.Socket
	for _, one := range all {
		if ours(one.Local, one.Remote) && roleOf(one) != noSession && roleOf(one) != closed {
			found = append(found, one)
		}
	}
	holders, err := s.holders(ctx, all, found)
	if err != nil {
		return nil, err
	}
	var sessions []volume.Session
	add := func(cookie uint64, inode uint32, client, server netip.AddrPort, holder string) {
		sessions = append(sessions, volume.Session{ID: identity{s.boot, cookie, inode}.String(), Client: client, Server: server, Holder: holder})
	}
	for _, one := range found {
		add(one.Cookie, one.Inode, one.Remote, one.Local, holders(one))
	}
	over, err := s.closedButOpen(ctx, all)
	if err != nil {
		return nil, err
	}
	for _, one := range over {
		if ours(one.Local, one.Remote) {
			add(one.Cookie, one.Inode, one.Remote, one.Local, named(one.Holders))
		}
	}
	slices.SortFunc(sessions, func(a, b volume.Session) int {
		return cmp.Or(a.Client.Compare(b.Client), a.Server.Compare(b.Server), strings.Compare(a.ID, b.ID))
	})
	return sessions, nil
}

// closedButOpen lists the closed connections that processes still have open.
func (s *Sockets) closedButOpen(ctx context.Context, all map[uint64]sockdiag.Socket) ([]sockfd.Closed, error) {
	if s.namespace == 0 {
		return nil, nil
	}
	live := make(map[uint32]bool, len(all))
	for _, one := range all {
		live[one.Inode] = true
	}
	found, err := sockfd.ClosedTCP(ctx, s.namespace, func(inode uint32) bool { return live[inode] })
	if err != nil {
		return nil, inspectError(err)
	}
	return found, nil
}

// sockets lists all TCP sockets by cookie. It merges two dumps, since one can
// miss a socket when others are created and removed meanwhile.
func (s *Sockets) sockets() (map[uint64]sockdiag.Socket, error) {
	all := map[uint64]sockdiag.Socket{}
	for range 2 {
		list, err := s.conn.TCP()
		if err != nil {
			return nil, errs.Errorf(errs.Internal, "list TCP sockets: %w", err)
		}
		for _, one := range list {
			all[one.Cookie] = one
		}
	}
	return all, nil
}

// role is the meaning of a socket for a fence.
type role int

const (
	noSession  role = iota // a listener, or a connection that this side opened
	closed                 // closed by its server; no process can read from it
	beginning              // not connected yet, no bytes received
	unaccepted             // connected, waits for a server to accept it
	served                 // accepted by a process, or owned by the kernel
)

func roleOf(s sockdiag.Socket) role {
	switch {
	case s.State == sockdiag.Listen || s.State == sockdiag.SynSent:
		return noSession
	case s.Inode != 0:
		return served
	case s.State == sockdiag.SynReceived && s.Receive == 0:
		return beginning
	case s.State == sockdiag.Established || s.State == sockdiag.CloseWait || s.State == sockdiag.SynReceived:
		return unaccepted
	}
	return closed
}

// holders returns a function that names the processes that have a socket open.
// For an unaccepted connection it names the processes that listen.
func (s *Sockets) holders(ctx context.Context, all map[uint64]sockdiag.Socket, some []sockdiag.Socket) (func(sockdiag.Socket) string, error) {
	if len(some) == 0 {
		return nil, nil
	}
	wanted := map[uint32]bool{}
	listeners := map[uint16][]uint32{}
	for _, one := range some {
		wanted[one.Inode] = one.Inode != 0
		if roleOf(one) == unaccepted {
			listeners[one.Local.Port()] = nil
		}
	}
	for _, one := range all {
		if _, waiting := listeners[one.Local.Port()]; waiting && one.State == sockdiag.Listen {
			listeners[one.Local.Port()] = append(listeners[one.Local.Port()], one.Inode)
			wanted[one.Inode] = one.Inode != 0
		}
	}
	held, _, err := sockfd.Holders(ctx, wanted)
	if err != nil {
		return nil, inspectError(err)
	}
	return func(one sockdiag.Socket) string {
		switch roleOf(one) {
		case beginning:
			return "no process yet: the connection is being set up"
		case unaccepted:
			var waiting []sockfd.Process
			for _, inode := range listeners[one.Local.Port()] {
				waiting = append(waiting, held[inode]...)
			}
			return "no process yet: waits to be accepted by " + named(waiting)
		}
		return named(held[one.Inode])
	}, nil
}

func inspectError(err error) error {
	kind := errs.Internal
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		kind = errs.Unavailable
	}
	return errs.Errorf(kind, "find the processes that serve the sessions: %w", err)
}

const noVisibleProcess = "no visible process: a server in the kernel, in another PID namespace, or more privileged than this program"

// named lists processes in a message, only the first few if there are many.
func named(all []sockfd.Process) string {
	const most = 3
	if len(all) == 0 {
		return noVisibleProcess
	}
	var names []string
	for _, p := range all[:min(len(all), most)] {
		names = append(names, p.String())
	}
	if len(all) > most {
		names = append(names, "others")
	}
	return strings.Join(names, ", ")
}
