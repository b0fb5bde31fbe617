package nft

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/nft"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// HolderCommand is the hidden command that starts a holder.
const HolderCommand = "fence-holder"

// protocol is the version of the holder's protocol. Later versions can extend
// the greeting and must keep "end": a server replaces a holder of another
// version.
const protocol = 1

// greeting is sent to each connection. Busy: another process is being served; a
// second greeting follows. Without Busy it carries the netlink socket
// (SCM_RIGHTS).
type greeting struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Table    string `json:"table,omitempty"`
	Busy     int    `json:"busy,omitempty"` // PID of the served process
}

const endRequest = "end\n"

// ready is printed after a successful start.
const ready = "ready\n"

const netlinkDescriptor = 3

// RunHolder is the holder process. It keeps the netlink socket open that owns
// the table, for a restarted server. args are the path of its UNIX socket and
// the table's name. After an end request or SIGTERM the table stays, without an
// owner.
func RunHolder(ctx context.Context, args []string) error { return runHolder(ctx, args, protocol) }

func runHolder(ctx context.Context, args []string, version int) error {
	if len(args) != 2 || nft.CheckFile(netlinkDescriptor) != nil {
		return errors.New("this command is internal: cleat starts the fence holder itself and passes it a netlink socket")
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE, unix.SIGALRM, unix.SIGUSR1, unix.SIGUSR2)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	unix.CloseOnExec(netlinkDescriptor)
	// Without the holder, another program's flush can remove the fence of a
	// dead server.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	l, err := unixsock.Listen(ctx, unixsock.Address{Path: args[0], DirMode: 0o700, AnyLength: true})
	if err != nil {
		return fmt.Errorf("fence holder: %w", err)
	}
	h := &holder{version: version, table: args[1], slot: make(chan struct{}, 1), endRequested: make(chan struct{}, 1)}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	if err := detachStreams(); err != nil {
		return errors.Join(err, l.Close())
	}
	debug.FreeOSMemory()
	go h.serve(unixsock.AllowUIDs(l, func(unixsock.Credentials) {}, 0, uint32(os.Geteuid())))
	select {
	case <-ctx.Done():
	case <-h.endRequested:
	}
	// Before the UNIX socket: the next holder's starter must find the table
	// unowned, or own it.
	_ = unix.Close(netlinkDescriptor)
	return l.Close()
}

// detachStreams reports readiness and redirects the standard streams to
// /dev/null.
func detachStreams() error {
	if _, err := os.Stdout.WriteString(ready); err != nil {
		return fmt.Errorf("fence holder: report readiness to the server: %w", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	for _, stream := range []int{0, 1, 2} {
		if err := unix.Dup3(int(null.Fd()), stream, 0); err != nil {
			return os.NewSyscallError("dup3", err)
		}
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	return nil
}

type holder struct {
	version      int
	table        string
	slot         chan struct{} // one token while a connection is served
	endRequested chan struct{}
	servedPID    atomic.Int32
}

func (h *holder) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if u, ok := c.(*net.UnixConn); ok {
			go h.serveConn(u)
		}
	}
}

// Two processes must not write to one netlink socket.
func (h *holder) serveConn(c *net.UnixConn) {
	defer func() { _ = c.Close() }()
	who, err := unixsock.PeerCredentials(c)
	if err != nil {
		return
	}
	select {
	case h.slot <- struct{}{}:
	default:
		if sendGreeting(c, greeting{Protocol: h.version, PID: os.Getpid(), Busy: int(h.servedPID.Load())}, nil) != nil {
			return
		}
		h.slot <- struct{}{}
	}
	defer func() { <-h.slot }()
	h.servedPID.Store(int32(who.PID))
	if sendGreeting(c, greeting{Protocol: h.version, PID: os.Getpid(), Table: h.table}, unix.UnixRights(netlinkDescriptor)) != nil {
		return
	}
	for in := bufio.NewReaderSize(c, 64); ; {
		line, err := in.ReadSlice('\n')
		switch {
		case err != nil:
			return
		case string(line) == endRequest:
			select { // no reply: the connection closes with this process
			case h.endRequested <- struct{}{}:
			default:
			}
		}
	}
}

func sendGreeting(c *net.UnixConn, g greeting, rights []byte) error {
	line, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(append(line, '\n'), rights, nil)
	return err
}
