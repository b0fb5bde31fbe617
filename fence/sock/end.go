package sock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/internal/linux/sockdiag"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

const (
	minBackoff = time.Millisecond
	maxBackoff = 250 * time.Millisecond
	// minUnseen is how many checks must find no process with the socket: the
	// descriptor can be in transit.
	minUnseen = 3
)

// End implements volume.Fencer, and returns when no process has the sockets
// open. A connection is destroyed only after it was accepted: its received
// bytes could not be tracked. Errors: errs.Unavailable, with the processes, if
// ctx ends; errs.Precondition for a session of the kernel without
// Config.KernelTargets; errs.Invalid for an unknown ID.
func (s *Sockets) End(ctx context.Context, sessions []volume.Session) error {
	e, err := s.ender(sessions)
	if err != nil {
		return err
	}
	for pause := (backoff.Backoff{First: minBackoff, Most: maxBackoff}); ; {
		if err := e.round(ctx); err != nil {
			return err
		}
		if len(e.left) == 0 {
			return e.refusedError()
		}
		if err := pause.Wait(ctx); err != nil {
			return errors.Join(e.refusedError(), e.unfinishedError(err))
		}
	}
}

type ender struct {
	*Sockets
	all     int
	left    []*ending
	refused []*ending // of the kernel
}

type ending struct {
	session volume.Session
	cookie  uint64
	inode   uint32 // last known; zero before accept
	unseen  int    // consecutive checks without a process
	state   string // for the error
}

func (s *Sockets) ender(sessions []volume.Session) (*ender, error) {
	byCookie := map[uint64]*ending{}
	for _, one := range sessions {
		id, err := parseIdentity(one.ID)
		if err != nil {
			return nil, err
		}
		if id.boot != s.boot {
			continue // rebooted
		}
		// A connection can be listed before and after accept.
		if known := byCookie[id.cookie]; known != nil {
			known.inode = max(known.inode, id.inode)
			continue
		}
		byCookie[id.cookie] = &ending{session: one, cookie: id.cookie, inode: id.inode}
	}
	e := &ender{Sockets: s, all: len(byCookie)}
	for _, one := range byCookie {
		e.left = append(e.left, one)
	}
	slices.SortFunc(e.left, func(a, b *ending) int { return a.session.Client.Compare(b.session.Client) })
	return e, nil
}

// round inspects all sockets and processes once and destroys what can be
// destroyed.
func (e *ender) round(ctx context.Context) error {
	if len(e.left) == 0 {
		return nil
	}
	live, err := e.sockets()
	if err != nil {
		return err
	}
	if err := e.findAccepted(ctx, live); err != nil {
		return err
	}
	wanted := map[uint32]bool{}
	for _, one := range e.left {
		if socket, is := live[one.cookie]; is && socket.Inode != 0 {
			one.inode = socket.Inode
		}
		wanted[one.inode] = one.inode != 0
	}
	held, _, err := sockfd.Holders(ctx, wanted)
	switch {
	case ctx.Err() != nil:
		return errors.Join(e.refusedError(), e.unfinishedError(context.Cause(ctx)))
	case err != nil:
		return inspectError(err)
	}
	var left []*ending
	for _, one := range e.left {
		socket, is := live[one.cookie]
		var over bool
		if is {
			over, err = e.endLive(one, socket, held[one.inode])
		} else {
			over = one.endClosed(held[one.inode])
		}
		if err != nil {
			return err
		}
		if !over {
			left = append(left, one)
		}
	}
	e.left = left
	return nil
}

// findAccepted finds the inodes of connections whose sockets are gone and that
// a process can have accepted since they were listed.
func (e *ender) findAccepted(ctx context.Context, live map[uint64]sockdiag.Socket) error {
	unknown := func(one *ending) bool {
		_, is := live[one.cookie]
		return one.inode == 0 && !is
	}
	if !slices.ContainsFunc(e.left, unknown) {
		return nil
	}
	over, err := e.closedButOpen(ctx, live)
	if err != nil {
		return err
	}
	for _, one := range e.left {
		i := slices.IndexFunc(over, func(c sockfd.Closed) bool { return c.Cookie == one.cookie })
		if unknown(one) && i >= 0 {
			one.inode = over[i].Inode
		}
	}
	return nil
}

// The session's socket exists.
func (e *ender) endLive(one *ending, socket sockdiag.Socket, holders []sockfd.Process) (over bool, err error) {
	switch roleOf(socket) {
	case beginning:
		one.state = "the connection is being set up"
		return false, e.destroy(socket)
	case unaccepted:
		one.state = "no server has accepted the connection"
		return false, nil
	case served:
	default:
		// No process can read, even if the kernel does not destroy it: older
		// ones ignore sockets without an owner.
		return true, e.destroy(socket)
	}
	if len(holders) > 0 {
		one.unseen, one.state = 0, "held by "+firstProcesses(holders)
		return false, e.destroy(socket)
	}
	one.unseen++
	one.state = "held by " + noVisibleProcess
	switch {
	case one.unseen < minUnseen:
		return false, nil
	case e.config.KernelTargets:
		return false, e.destroy(socket)
	}
	e.refused = append(e.refused, one)
	return true, nil
}

// The socket was destroyed, but a process can read received bytes while it has
// the descriptor.
func (one *ending) endClosed(holders []sockfd.Process) (over bool) {
	if one.inode == 0 {
		return true
	}
	if len(holders) > 0 {
		one.unseen, one.state = 0, "destroyed, but still open in "+firstProcesses(holders)+"; the fence continues when that process closes the descriptor or exits"
		return false
	}
	one.unseen++
	return one.unseen >= minUnseen
}

// The next round checks the result.
func (e *ender) destroy(socket sockdiag.Socket) error {
	if e.destroyErr != nil {
		return nil
	}
	err := e.conn.Destroy(socket)
	switch {
	case errors.Is(err, sockdiag.ErrGone) || errors.Is(err, sockdiag.ErrNoDestroy):
		return nil
	case err != nil:
		return errs.Errorf(errs.Internal, "end the session from %v: %w", socket.Remote, err)
	}
	return nil
}
