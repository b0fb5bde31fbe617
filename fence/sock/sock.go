// Package sock ends fenced clients' TCP sessions with local storage servers
// that do not implement fencing.
//
// If a packet filter already blocks the clients, then after End returns nil no
// process has such a session's socket open. What the server does with bytes
// read before is outside the guarantee. Servers in the kernel (nvmet, LIO,
// nfsd) have no process to observe: see Config.KernelTargets. Nor has a process
// in another PID namespace, or a more privileged one.
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
	"github.com/cleatproject/cleat/internal/linux/conntrack"
	"github.com/cleatproject/cleat/internal/linux/sockdiag"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

// Config configures Sockets.
type Config struct {
	// The servers' ports. All ports include connections from local servers to
	// fenced clients.
	Ports ports.Set
	// KernelTargets assumes that the kernel serves a connection without a
	// visible process, which ends with its socket. The target can still execute
	// a received command. Otherwise such a session cannot be ended.
	KernelTargets bool
	// AllowRDMA: servers that accept sessions over RDMA do not keep a fence from
	// being confirmed. Their sessions are ended by other means.
	AllowRDMA bool
	Logger    *slog.Logger
}

// Sockets lists and ends this network namespace's TCP sessions.
type Sockets struct {
	config Config
	conn   *sockdiag.Conn
	// tracked lists connections that this namespace forwards.
	tracked *conntrack.Conn
	boot    string
	// The namespace's cookie; zero: closed sockets that processes have open
	// cannot be found.
	namespace uint64
	// Nil: the kernel can destroy sockets.
	destroyErr error
}

// Status is the kernel's support.
type Status struct {
	// Otherwise End only waits for sessions.
	Destroys bool   `json:"destroys"`
	Detail   string `json:"detail,omitempty"` // why not
}

// Open checks the kernel's support. Close must be called. Without sock_diag or
// /proc it fails: no session's end could be verified.
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
	tracked, err := conntrack.Dial()
	if err != nil {
		_ = conn.Close()
		return nil, errs.Errorf(errs.Internal, "%w", err)
	}
	s := &Sockets{config: config, conn: conn, tracked: tracked, boot: boot}
	if err := s.probe(ctx); err != nil {
		_ = s.Close()
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
		s.config.Logger.WarnContext(ctx, "cannot read open files of some processes, their sessions appear to belong to the kernel", "pid", firstProcesses(hidden))
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

// Close requires that no call is in flight.
func (s *Sockets) Close() error {
	return errors.Join(s.tracked.Close(), s.conn.Close())
}

// Status returns Open's result.
func (s *Sockets) Status() Status {
	if s.destroyErr != nil {
		return Status{Detail: s.destroyErr.Error()}
	}
	return Status{Destroys: true}
}

// Sessions implements volume.Fencer. It includes closed connections that a
// process has open, as it can read received bytes. It excludes those that only
// wait for the client's acknowledgement.
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
			add(one.Cookie, one.Inode, one.Remote, one.Local, firstProcesses(one.Holders))
		}
	}
	slices.SortFunc(sessions, func(a, b volume.Session) int {
		return cmp.Or(a.Client.Compare(b.Client), a.Server.Compare(b.Server), strings.Compare(a.ID, b.ID))
	})
	return sessions, nil
}

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

// sockets merges two dumps: one can miss a socket while others come and go.
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

// role is a socket's meaning for a fence.
type role int

const (
	noSession  role = iota // a listener, or opened by this side
	closed                 // by its server; no process can read
	beginning              // not connected, no bytes
	unaccepted             // waits for accept
	served                 // by a process or the kernel
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

// holders names the processes that have a socket open; for an unaccepted
// connection, those that listen.
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
			return "no process yet: waits to be accepted by " + firstProcesses(waiting)
		}
		return firstProcesses(held[one.Inode])
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

// firstProcesses lists the first few processes.
func firstProcesses(all []sockfd.Process) string {
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
