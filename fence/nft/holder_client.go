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

// holderClient starts holders and connects to them.
type holderClient struct {
	path    string
	table   string
	command []string
}

// link is a connection to a running holder; it closes when the holder dies.
type link struct {
	conn    *net.UnixConn
	pid     int
	version int         // of the holder's protocol
	process *os.Process // set if this process started the holder
}

const (
	startTimeout = 20 * time.Second // from the start of a holder to its ready line
	greetTimeout = 10 * time.Second // from a connection to its greeting
)

// errNoHolder means that no process listens on the holder's socket.
var errNoHolder = errors.New("no fence holder is running")

// open connects to the holder and returns the netlink socket that it holds. If
// no holder is running, it starts one with the socket that newSocket returns. A
// holder of another protocol version is replaced and its socket passed on.
func (k holderClient) open(ctx context.Context, fresh func() (*os.File, error)) (*link, *os.File, error) {
	l, held, err := k.connect(ctx)
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
	return k.startAndConnect(ctx, held)
}

func (k holderClient) startAndConnect(ctx context.Context, held *os.File) (*link, *os.File, error) {
	process, failed := k.start(ctx, held)
	// Another process can have started a holder at the same time; then that
	// holder answers.
	l, got, err := k.connect(ctx)
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

// start starts a holder in a session of its own and waits until it is ready.
// The holder inherits no descriptor except the netlink socket.
func (k holderClient) start(ctx context.Context, held *os.File) (*os.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if len(k.command) == 0 {
		return nil, errors.New("no command to start a fence holder is configured")
	}
	// Descriptors that this process inherited must not stay open in the holder.
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
	// One thread is enough, and the runtime must not keep a cgroup file open.
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
		return nil, fmt.Errorf("start a fence holder: %w", errors.Join(context.Cause(ctx), err))
	}
	return nil, fmt.Errorf("start a fence holder: %s", strings.TrimSpace(string(said)))
}

// connect connects to a running holder and receives its netlink socket.
func (k holderClient) connect(ctx context.Context) (*link, *os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
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
		return nil, nil, errors.Join(fmt.Errorf("fence holder: unexpected connection type %T", c), c.Close())
	}
	g, held, err := receiveGreeting(ctx, conn)
	if err == nil {
		err = k.check(conn, g, held)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) { // the holder has just ended
		err = fmt.Errorf("%w at %s: %w", errNoHolder, k.path, err)
	}
	if err != nil {
		_ = held.Close()
		return nil, nil, errors.Join(err, conn.Close())
	}
	return &link{conn: conn, pid: g.PID, version: g.Protocol}, held, nil
}

func (k holderClient) check(conn *net.UnixConn, g greeting, held *os.File) error {
	who, err := unixsock.PeerCredentials(conn)
	switch {
	case err != nil:
		return err
	case who.UID != 0 && int(who.UID) != os.Geteuid():
		return errs.Errorf(errs.Precondition, "socket %s is served by a process of user %d, which is not trusted; end that process and remove the socket", k.path, who.UID)
	case held == nil:
		return errs.Errorf(errs.Precondition, "the fence holder (process %d) at %s sent no netlink socket; end that process, the fences stay", g.PID, k.path)
	case g.Table != k.table:
		return errs.Errorf(errs.Precondition, "the fence holder (process %d) at %s holds table %q instead of %q; start with the former name, or end that process and delete its table", g.PID, k.path, g.Table, k.table)
	}
	return nil
}

// receiveGreeting reads greetings until one is not Busy.
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
				err = errs.Errorf(errs.Busy, "the fence holder (process %d) serves process %d, another server with the same state directory: %w", busy.PID, busy.Busy, err)
			}
		}
		if err != nil {
			return greeting{}, held, fmt.Errorf("read the greeting of the fence holder: %w", err)
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
			return greeting{}, held, errors.New("the greeting of the fence holder exceeds 4 KiB")
		}
	}
}

func parseGreeting(line []byte) (greeting, error) {
	var g greeting
	if err := json.Unmarshal(line, &g); err != nil || g.Protocol < 1 || g.PID < 0 || g.Busy < 0 {
		return greeting{}, fmt.Errorf("invalid greeting of a fence holder: %.80q", line)
	}
	return g, nil
}

// rights returns the first descriptor of a control message and closes the
// others.
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

// wait returns nil when the holder has died, or the cause when ctx ends.
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

// end asks the holder to end and waits until it has ended.
func (l *link) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	// A write to a dead holder fails; wait then returns at once.
	_, _ = io.WriteString(l.conn, endRequest)
	if err := l.wait(ctx); err != nil {
		return fmt.Errorf("wait for the fence holder (process %d) to end: %w", l.pid, err)
	}
	l.reap()
	return nil
}

// reap releases the resources of a dead holder.
func (l *link) reap() {
	_ = l.conn.Close()
	if l.process != nil {
		_, _ = l.process.Wait()
	}
}

// detach disconnects from a holder that keeps running.
func (l *link) detach() {
	_ = l.conn.Close()
	if l.process != nil {
		_ = l.process.Release()
	}
}
