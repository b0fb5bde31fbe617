// Package sock ends the TCP sessions of fenced clients with storage servers of
// this machine that know nothing of fences.
//
// What it guarantees, when a packet filter keeps the clients out already: when
// End returns nil, no process has the socket of such a session open any more.
// Bytes that the client sent before it was shut out may have been read by the
// server until then; what the server does with bytes that it has read is its own
// affair. A server inside the kernel (nvmet, LIO, nfsd) has no process and shows
// nobody when it is done: see Config.KernelTargets. The same goes for a process
// that cannot be looked at, since it is in another PID namespace or more
// privileged than this one.
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

// Config is that of Sockets.
type Config struct {
	// Ports are the servers' own. With all of them, connections that servers of
	// this machine have made to fenced clients count as well.
	Ports ports.Set
	// KernelTargets: a connection that no visible process holds is served by the
	// kernel, and counts as ended when its socket is destroyed. A command that
	// the target has taken from it by then may still be carried out. Without it
	// such a session cannot be ended.
	KernelTargets bool
	Logger        *slog.Logger // nil: no log
}

// Sockets are the TCP sessions of this network namespace.
type Sockets struct {
	config Config
	conn   *sockdiag.Conn
	boot   string
	// namespace is the cookie of the network namespace; zero when sockets whose
	// connections are over cannot be looked for.
	namespace uint64
	// destroys is nil when the kernel destroys sockets, else why not.
	destroys error
}

// Status says what the kernel allows.
type Status struct {
	// Destroys: sessions are ended; else they are only waited for.
	Destroys bool   `json:"destroys"`
	Detail   string `json:"detail,omitempty"` // why not, else empty
}

// Open looks at what the kernel can do. Close must be called. It fails where
// End could never tell that a session has ended: without sock_diag or /proc.
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
		return nil, errs.Errorf(errs.Internal, "the sessions of storage servers: %w", err)
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
		return errs.Errorf(errs.Internal, "the sessions of storage servers: %w", err)
	}
	_, hidden, err := sockfd.Holders(ctx, nil)
	if err != nil {
		return unseen(err)
	}
	if len(hidden) > 0 {
		s.config.Logger.WarnContext(ctx, "the open files of some processes cannot be seen; what they serve looks as if the kernel did", "processes", named(hidden))
	}
	if err := sockfd.CanTakeDescriptors(); err != nil {
		s.config.Logger.WarnContext(ctx, "sessions that break off while their server hangs cannot be seen", "reason", err)
	} else if s.namespace, err = s.conn.Namespace(); err != nil {
		return errs.Errorf(errs.Internal, "the sessions of storage servers: %w", err)
	}
	if s.destroys = s.conn.CanDestroy(); s.destroys != nil {
		s.config.Logger.WarnContext(ctx, "sessions of fenced clients cannot be ended, only waited for", "reason", s.destroys)
	}
	return nil
}

// Close lets go of the kernel. No other call may be under way.
func (s *Sockets) Close() error { return s.conn.Close() }

// Status says what Open found out.
func (s *Sockets) Status() Status {
	if s.destroys != nil {
		return Status{Detail: s.destroys.Error()}
	}
	return Status{Destroys: true}
}

// Sessions lists the connections from the blocks to the ports, as
// volume.Fencer. A connection that is over, but that a process still has open,
// is one: what it received may be read yet. A socket that its server has closed,
// and which only waits for the client to hear of it, is none: nobody can read
// from it.
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
	over, err := s.over(ctx, all)
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

// over lists the connections that are over and that processes still have open.
func (s *Sockets) over(ctx context.Context, all map[uint64]sockdiag.Socket) ([]sockfd.Closed, error) {
	if s.namespace == 0 {
		return nil, nil
	}
	live := make(map[uint32]bool, len(all))
	for _, one := range all {
		live[one.Inode] = true
	}
	found, err := sockfd.ClosedTCP(ctx, s.namespace, func(inode uint32) bool { return live[inode] })
	if err != nil {
		return nil, unseen(err)
	}
	return found, nil
}

// sockets lists all TCP sockets by their cookies. One list may lack a socket
// because others came and went, so there are two.
func (s *Sockets) sockets() (map[uint64]sockdiag.Socket, error) {
	all := map[uint64]sockdiag.Socket{}
	for range 2 {
		list, err := s.conn.TCP()
		if err != nil {
			return nil, errs.Errorf(errs.Internal, "the sessions of storage servers: %w", err)
		}
		for _, one := range list {
			all[one.Cookie] = one
		}
	}
	return all, nil
}

// role is what a socket is to a fence.
type role int

const (
	noSession  role = iota // a listener, or a connection that this side began
	closed                 // by its server; nobody can read from it
	beginning              // there is no connection yet, and no bytes
	unaccepted             // a connection whose bytes wait for a server to take it
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

// holders looks for those who serve some sockets, and returns what to say of
// each. Of a connection that waits, those are named who should take it.
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
		return nil, unseen(err)
	}
	return func(one sockdiag.Socket) string {
		switch roleOf(one) {
		case beginning:
			return "nobody yet: the connection is being set up"
		case unaccepted:
			var waiting []sockfd.Process
			for _, inode := range listeners[one.Local.Port()] {
				waiting = append(waiting, held[inode]...)
			}
			return "nobody yet: to be accepted by " + named(waiting)
		}
		return named(held[one.Inode])
	}, nil
}

func unseen(err error) error {
	kind := errs.Internal
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		kind = errs.Unavailable
	}
	return errs.Errorf(kind, "who serves which session: %w", err)
}

const invisible = "no process that can be seen: a server in the kernel, in another PID namespace, or without leave to look at it"

// named lists processes for people, not all of them when there are many.
func named(all []sockfd.Process) string {
	const most = 3
	if len(all) == 0 {
		return invisible
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
