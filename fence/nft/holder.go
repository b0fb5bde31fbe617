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

// HolderCommand is the hidden command by which a server starts its holder.
const HolderCommand = "fence-holder"

// protocol is the version of what a holder says and understands. A later one
// may add words to the greeting, and must keep the order "end": a server ends a
// holder of another version and starts its own.
const protocol = 1

// greeting is the line that a holder says to whoever connects. One with Busy
// means that another process is being served; the next line comes when that
// one has gone. With the other comes the netlink socket.
type greeting struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Table    string `json:"table,omitempty"`
	Busy     int    `json:"busy,omitempty"` // the process that is being served
}

// orderEnd tells a holder to end.
const orderEnd = "end\n"

// ready is what a holder that has begun says on its standard output.
const ready = "ready\n"

// netlinkDescriptor is where a holder finds the socket that it is to hold.
const netlinkDescriptor = 3

// RunHolder is the body of the holder: a process that does nothing but keep a
// netlink socket open, which owns the table, so that a server may be killed and
// the next one takes the socket over. args are the path of its UNIX socket and
// the name of the table. It returns when it is told to end, by a server or by
// SIGTERM; the table then stays, without an owner.
func RunHolder(ctx context.Context, args []string) error { return runHolder(ctx, args, protocol) }

func runHolder(ctx context.Context, args []string, version int) error {
	if len(args) != 2 || nft.CheckFile(netlinkDescriptor) != nil {
		return errors.New("a fence holder is started by cleat itself, with a socket to hold; there is nothing to do by hand")
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE, unix.SIGALRM, unix.SIGUSR1, unix.SIGUSR2)
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM)
	defer stop()
	unix.CloseOnExec(netlinkDescriptor)
	// It is small, and when it goes a flush by others may lift the fence.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	l, err := unixsock.Listen(ctx, unixsock.Address{Path: args[0], DirMode: 0o700, AnyLength: true})
	if err != nil {
		return fmt.Errorf("fence holder: %w", err)
	}
	h := &holder{version: version, table: args[1], slot: make(chan struct{}, 1), asked: make(chan struct{}, 1)}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	if err := becomeQuiet(); err != nil {
		return errors.Join(err, l.Close())
	}
	debug.FreeOSMemory()
	go h.serve(unixsock.AllowUIDs(l, func(unixsock.Credentials) {}, 0, uint32(os.Geteuid())))
	select {
	case <-ctx.Done():
	case <-h.asked:
	}
	// Closed before the socket's name goes: who starts the next holder must
	// find the table without an owner, or be the owner.
	_ = unix.Close(netlinkDescriptor)
	return l.Close()
}

// becomeQuiet tells the starter that all is well, and lets go of its streams.
func becomeQuiet() error {
	if _, err := os.Stdout.WriteString(ready); err != nil {
		return fmt.Errorf("fence holder: nobody waits for it: %w", err)
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
	version int
	table   string
	slot    chan struct{} // holds one token while somebody is served
	asked   chan struct{} // to end
	served  atomic.Int32  // the process
}

func (h *holder) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		if u, ok := c.(*net.UnixConn); ok {
			go h.attend(u)
		}
	}
}

// attend serves one process at a time: two must not write to one socket.
func (h *holder) attend(c *net.UnixConn) {
	defer func() { _ = c.Close() }()
	who, err := unixsock.PeerCredentials(c)
	if err != nil {
		return
	}
	select {
	case h.slot <- struct{}{}:
	default:
		if say(c, greeting{Protocol: h.version, PID: os.Getpid(), Busy: int(h.served.Load())}, nil) != nil {
			return
		}
		h.slot <- struct{}{}
	}
	defer func() { <-h.slot }()
	h.served.Store(int32(who.PID))
	if say(c, greeting{Protocol: h.version, PID: os.Getpid(), Table: h.table}, unix.UnixRights(netlinkDescriptor)) != nil {
		return
	}
	for in := bufio.NewReaderSize(c, 64); ; {
		line, err := in.ReadSlice('\n')
		switch {
		case err != nil: // the server is gone, and the next one may come
			return
		case string(line) == orderEnd:
			select { // the connection ends with the process: that is the answer
			case h.asked <- struct{}{}:
			default:
			}
		}
	}
}

func say(c *net.UnixConn, g greeting, rights []byte) error {
	line, err := json.Marshal(g)
	if err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(append(line, '\n'), rights, nil)
	return err
}
