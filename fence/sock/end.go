package sock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/sockdiag"
	"github.com/cleatproject/cleat/internal/linux/sockfd"
	"github.com/cleatproject/cleat/volume"
)

const (
	minBackoff = time.Millisecond
	maxBackoff = 250 * time.Millisecond
	// minUnseen is the number of consecutive checks without a process that has
	// the socket open before that is believed: the descriptor can be in transit
	// between processes.
	minUnseen = 3
)

// End ends sessions, as volume.Fencer, and returns when no process has their
// sockets open. A connection that no server has accepted yet is not destroyed
// before it is accepted: its received bytes could not be tracked. The error is
// errs.Unavailable if ctx ends first, with the processes that have the sockets
// open; errs.Precondition if a session belongs to the kernel and
// Config.KernelTargets is not set; errs.Invalid for an ID that Sessions did not
// return.
func (s *Sockets) End(ctx context.Context, sessions []volume.Session) error {
	e, err := s.ender(sessions)
	if err != nil {
		return err
	}
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		if err := e.round(ctx); err != nil {
			return err
		}
		if len(e.left) == 0 {
			return e.refusedError()
		}
		if err := sleep(ctx, pause); err != nil {
			return errors.Join(e.refusedError(), e.unfinishedError(err))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ender is one call of End.
type ender struct {
	*Sockets
	all     int
	left    []*ending
	refused []*ending // sessions of the kernel
}

// ending is a session to end.
type ending struct {
	session volume.Session
	cookie  uint64
	inode   uint32 // last known inode; zero before the connection was accepted
	unseen  int    // consecutive checks that found no process with the socket open
	state   string // what the session waits for, for the error
}

func (s *Sockets) ender(sessions []volume.Session) (*ender, error) {
	byCookie := map[uint64]*ending{}
	for _, one := range sessions {
		id, err := parseIdentity(one.ID)
		if err != nil {
			return nil, err
		}
		if id.boot != s.boot {
			continue // no socket survives a reboot
		}
		// A connection can be listed both before and after it was accepted.
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

// round inspects all sockets and processes once and destroys the sockets that
// can be destroyed.
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

// findAccepted finds the inodes of connections that were not accepted when they
// were listed and whose sockets are gone: a process can have accepted them
// since.
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

// endLive processes a session whose socket exists.
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
		// No process can read from the socket, even if the kernel does not
		// destroy it: older kernels ignore sockets without an owner.
		return true, e.destroy(socket)
	}
	if len(holders) > 0 {
		one.unseen, one.state = 0, "held by "+named(holders)
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

// endClosed processes a session whose socket was destroyed. A process can still
// read the received bytes while it has the descriptor open.
func (one *ending) endClosed(holders []sockfd.Process) (over bool) {
	if one.inode == 0 {
		return true
	}
	if len(holders) > 0 {
		one.unseen, one.state = 0, "destroyed, but still open in "+named(holders)+"; the fence continues when that process closes the descriptor or exits"
		return false
	}
	one.unseen++
	return one.unseen >= minUnseen
}

// destroy destroys a socket if the kernel supports that; the next round checks
// the result.
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
