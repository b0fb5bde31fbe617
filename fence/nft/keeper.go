package nft

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// keeper starts holders and speaks to them.
type keeper struct {
	path    string
	table   string
	command []string
}

// link is the connection to a living holder; it ends when the holder dies.
type link struct {
	conn    *net.UnixConn
	pid     int
	version int         // of its protocol
	process *os.Process // set when this process started it
}

const (
	startBound = 20 * time.Second // from the start of a holder until it is ready
	greetBound = 10 * time.Second // and a connection until it is answered
)

// errNoHolder: nobody listens.
var errNoHolder = errors.New("there is no fence holder")

// hire connects to a holder and returns the socket that it holds. When there
// is none, one is started with the socket that fresh returns; one of another
// version is replaced, and its socket goes over.
func (k keeper) hire(ctx context.Context, fresh func() (*os.File, error)) (*link, *os.File, error) {
	l, held, err := k.greet(ctx)
	switch {
	case errors.Is(err, errNoHolder):
		if held, err = fresh(); err != nil {
			return nil, nil, err
		}
	case err != nil || l.version == protocol:
		return l, held, err
	default:
		if err := l.end(ctx); err != nil {
			return nil, nil, errors.Join(err, held.Close())
		}
	}
	defer func() { _ = held.Close() }()
	return k.startAndGreet(ctx, held)
}

func (k keeper) startAndGreet(ctx context.Context, held *os.File) (*link, *os.File, error) {
	process, failed := k.start(ctx, held)
	// Another process may have been faster; then its holder answers.
	l, got, err := k.greet(ctx)
	switch {
	case err != nil && process != nil:
		_ = process.Kill()
		_, _ = process.Wait()
		return nil, nil, err
	case err != nil:
		return nil, nil, errors.Join(failed, err)
	case process != nil && process.Pid == l.pid:
		l.process = process
	}
	return l, got, nil
}

// start runs a holder until it is ready. It is a session of its own, and gets
// no descriptor but the socket.
func (k keeper) start(ctx context.Context, held *os.File) (*os.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	if len(k.command) == 0 {
		return nil, errors.New("no command for a fence holder is set")
	}
	// What this process inherited itself is not to be held open by the holder.
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC)
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.Command(k.command[0], append(k.command[1:len(k.command):len(k.command)], k.path, k.table)...)
	cmd.Stdout, cmd.Stderr = in, in
	cmd.ExtraFiles = []*os.File{held}
	cmd.Dir = "/"
	// One thread is enough, and no file of the control group is to be kept open.
	cmd.Env = []string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		return nil, fmt.Errorf("start a fence holder: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = out.SetReadDeadline(time.Unix(1, 0)) })()
	said, err := io.ReadAll(io.LimitReader(out, 4<<10))
	if err == nil && string(said) == ready {
		return cmd.Process, nil
	}
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
	if err != nil {
		return nil, fmt.Errorf("the fence holder did not begin: %w", errors.Join(context.Cause(ctx), err))
	}
	return nil, fmt.Errorf("the fence holder did not begin: %s", strings.TrimSpace(string(said)))
}

// greet connects to a holder and takes the socket that it holds.
func (k keeper) greet(ctx context.Context) (*link, *os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, greetBound)
	defer cancel()
	c, err := unixsock.Dial(ctx, k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return nil, nil, fmt.Errorf("%w at %s: %w", errNoHolder, k.path, err)
	case err != nil:
		return nil, nil, errs.Errorf(errs.Unavailable, "fence holder: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, nil, errors.Join(fmt.Errorf("fence holder: a connection of type %T", c), c.Close())
	}
	g, held, err := receiveGreeting(ctx, conn)
	if err == nil {
		err = k.check(conn, g, held)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) { // it ended just now
		err = fmt.Errorf("%w at %s: %w", errNoHolder, k.path, err)
	}
	if err != nil {
		_ = held.Close()
		return nil, nil, errors.Join(err, conn.Close())
	}
	return &link{conn: conn, pid: g.PID, version: g.Protocol}, held, nil
}

func (k keeper) check(conn *net.UnixConn, g greeting, held *os.File) error {
	who, err := unixsock.PeerCredentials(conn)
	switch {
	case err != nil:
		return err
	case who.UID != 0 && int(who.UID) != os.Geteuid():
		return errs.Errorf(errs.Precondition, "the socket %s is served by user %d, and no fence is trusted to it; remove what is there", k.path, who.UID)
	case held == nil:
		return errs.Errorf(errs.Precondition, "the fence holder (process %d) at %s gave no socket; end it, the fences stay", g.PID, k.path)
	case g.Table != k.table:
		return errs.Errorf(errs.Precondition, "the fence holder (process %d) at %s is for the table %q, and %q is wanted: start with the former name, or end it and delete its table by hand", g.PID, k.path, g.Table, k.table)
	}
	return nil
}

// receiveGreeting reads lines until one comes that is no Busy.
func receiveGreeting(ctx context.Context, conn *net.UnixConn) (greeting, *os.File, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	var text []byte
	var held *os.File
	var busy greeting
	buf, oob := make([]byte, 4<<10), make([]byte, 256)
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
			if busy.Busy != 0 {
				err = errs.Errorf(errs.Busy, "the fence holder (process %d) serves process %d: another server uses the same state: %w", busy.PID, busy.Busy, err)
			}
		}
		if err != nil {
			return greeting{}, held, fmt.Errorf("the greeting of the fence holder: %w", err)
		}
		if f := rights(oob[:oobn]); f != nil {
			_ = held.Close()
			held = f
		}
		text = append(text, buf[:n]...)
		for {
			line, rest, whole := bytes.Cut(text, []byte("\n"))
			if !whole {
				break
			}
			text = rest
			g, err := parseGreeting(line)
			if err != nil || g.Busy == 0 {
				return g, held, err
			}
			busy = g
		}
		if len(text) > 4<<10 {
			return greeting{}, held, errors.New("the greeting of the fence holder is too long")
		}
	}
}

func parseGreeting(line []byte) (greeting, error) {
	var g greeting
	if err := json.Unmarshal(line, &g); err != nil || g.Protocol < 1 || g.PID < 0 || g.Busy < 0 {
		return greeting{}, fmt.Errorf("%.80q is no greeting of a fence holder", line)
	}
	return g, nil
}

// rights returns the first descriptor of a control message and closes others.
func rights(oob []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var first *os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if first == nil {
				first = os.NewFile(uintptr(fd), "nftables")
			} else {
				_ = unix.Close(fd)
			}
		}
	}
	return first
}

// wait returns when the holder has died, or ctx ended.
func (l *link) wait(ctx context.Context) error {
	hooked := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(hooked)
		_ = l.conn.SetReadDeadline(time.Unix(1, 0))
	})
	_, _ = io.Copy(io.Discard, l.conn)
	if !unhook() {
		<-hooked
		_ = l.conn.SetReadDeadline(time.Time{})
		return context.Cause(ctx)
	}
	return nil
}

// end tells the holder to end, and waits until it has.
func (l *link) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetBound)
	defer cancel()
	// One that is dead already does not take it, and wait sees why.
	_, _ = io.WriteString(l.conn, orderEnd)
	if err := l.wait(ctx); err != nil {
		return fmt.Errorf("the fence holder (process %d) does not end: %w", l.pid, err)
	}
	l.bury()
	return nil
}

// bury is for a holder that is dead.
func (l *link) bury() {
	_ = l.conn.Close()
	if l.process != nil {
		_, _ = l.process.Wait()
	}
}

// leave lets go of a holder that lives on.
func (l *link) leave() {
	_ = l.conn.Close()
	if l.process != nil {
		_ = l.process.Release()
	}
}
