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
	firstPause = time.Millisecond
	mostPause  = 250 * time.Millisecond
	// looks is how often in a row nobody must be seen to have a socket open
	// before it is believed: it may be on its way from one process to another.
	looks = 3
)

// End ends sessions, as volume.Fencer, and returns when no process has their
// sockets open. A connection that no server has accepted yet is not touched
// before one has: its bytes could not be followed otherwise. The error is
// errs.Unavailable when ctx ends before that, and names who still holds what;
// errs.Precondition when a session is the kernel's and that is not allowed
// for; errs.Invalid when an ID is none of Sessions.
func (s *Sockets) End(ctx context.Context, sessions []volume.Session) error {
	e, err := s.ender(sessions)
	if err != nil {
		return err
	}
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		if err := e.round(ctx); err != nil {
			return err
		}
		if len(e.left) == 0 {
			return e.refusal()
		}
		if err := sleep(ctx, pause); err != nil {
			return errors.Join(e.refusal(), e.unfinished(err))
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
	refused []*ending // the kernel's
}

// ending is a session that is to end.
type ending struct {
	session volume.Session
	cookie  uint64
	inode   uint32 // the last one that was known; zero before it was accepted
	unseen  int    // looks in a row that saw nobody who has it open
	state   string // for the message: what is waited for
}

func (s *Sockets) ender(sessions []volume.Session) (*ender, error) {
	byCookie := map[uint64]*ending{}
	for _, one := range sessions {
		id, err := parseIdentity(one.ID)
		if err != nil {
			return nil, err
		}
		if id.boot != s.boot {
			continue // nothing of it has outlived the machine
		}
		// A connection may be known from before and after it was accepted.
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

// round looks at all sockets and all processes once, and does what can be done.
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
		return errors.Join(e.refusal(), e.unfinished(context.Cause(ctx)))
	case err != nil:
		return unseen(err)
	}
	var left []*ending
	for _, one := range e.left {
		socket, is := live[one.cookie]
		var over bool
		if is {
			over, err = e.liveOne(one, socket, held[one.inode])
		} else {
			over = one.goneOne(held[one.inode])
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

// findAccepted looks for connections that were listed before anybody accepted
// them, and are gone: somebody may have accepted them since.
func (e *ender) findAccepted(ctx context.Context, live map[uint64]sockdiag.Socket) error {
	unknown := func(one *ending) bool {
		_, is := live[one.cookie]
		return one.inode == 0 && !is
	}
	if !slices.ContainsFunc(e.left, unknown) {
		return nil
	}
	over, err := e.over(ctx, live)
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

// liveOne does what can be done about a socket that is there.
func (e *ender) liveOne(one *ending, socket sockdiag.Socket, holders []sockfd.Process) (over bool, err error) {
	switch roleOf(socket) {
	case beginning:
		one.state = "the connection is being set up"
		return false, e.destroy(socket)
	case unaccepted:
		one.state = "no server has accepted the connection"
		return false, nil
	case served:
	default:
		// Whether the kernel destroys it or not (older ones do nothing about
		// sockets without an owner): nobody can read from it.
		return true, e.destroy(socket)
	}
	if len(holders) > 0 {
		one.unseen, one.state = 0, "held by "+named(holders)
		return false, e.destroy(socket)
	}
	one.unseen++
	one.state = "held by " + invisible
	switch {
	case one.unseen < looks:
		return false, nil
	case e.config.KernelTargets:
		return false, e.destroy(socket)
	}
	e.refused = append(e.refused, one)
	return true, nil
}

// goneOne follows a socket that is destroyed, whose bytes a process may still
// read.
func (one *ending) goneOne(holders []sockfd.Process) (over bool) {
	if one.inode == 0 {
		return true
	}
	if len(holders) > 0 {
		one.unseen, one.state = 0, "cut off, but still open in "+named(holders)+"; it goes on by itself when that process closes the descriptor or ends"
		return false
	}
	one.unseen++
	return one.unseen >= looks
}

// destroy destroys a socket where the kernel can; the next round looks at what
// came of it.
func (e *ender) destroy(socket sockdiag.Socket) error {
	if e.destroys != nil {
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
