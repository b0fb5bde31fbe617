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

type holderClient struct {
	path    string
	table   string
	command []string
}

// link is a connection to a holder, closed when that dies.
type link struct {
	conn    *net.UnixConn
	pid     int
	version int         // of the protocol
	process *os.Process // if started by this process
}

const (
	startTimeout = 20 * time.Second // until its ready line
	greetTimeout = 10 * time.Second // from connect
)

// errNoHolder: no process listens.
var errNoHolder = errors.New("no fence holder is running")

// open returns the holder's netlink socket. Without a holder, it starts one
// with a fresh socket. A holder of another version is replaced and its socket
// passed on.
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
	// Another process can have started a holder meanwhile, which then answers.
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

// start runs a ready holder in its own session, with no descriptor but the
// netlink socket.
func (k holderClient) start(ctx context.Context, held *os.File) (*os.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if len(k.command) == 0 {
		return nil, errors.New("no command to start a fence holder is configured")
	}
	// Inherited descriptors must not stay open in the holder.
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
	// One thread, and no open cgroup file.
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
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) { // just ended
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

// rights closes all descriptors but the first.
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

// wait returns nil when the holder has died.
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

func (l *link) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetTimeout)
	defer cancel()
	// If the write fails, wait returns at once.
	_, _ = io.WriteString(l.conn, endRequest)
	if err := l.wait(ctx); err != nil {
		return fmt.Errorf("wait for the fence holder (process %d) to end: %w", l.pid, err)
	}
	l.reap()
	return nil
}

func (l *link) reap() {
	_ = l.conn.Close()
	if l.process != nil {
		_, _ = l.process.Wait()
	}
}

// detach lets the holder run.
func (l *link) detach() {
	_ = l.conn.Close()
	if l.process != nil {
		_ = l.process.Release()
	}
}
