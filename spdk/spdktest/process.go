package spdktest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// Flavour is which SPDK a process is built from.
type Flavour int

const (
	// Upstream is the recorded 26.09-pre.
	Upstream Flavour = iota
	// Fork is NVIDIA's fork of 24.01 [R]: no keyring, no DH-HMAC-CHAP, psk is
	// a path, the transport NVDA_TCP, fsdev_get_fsdevs.
	Fork
)

// Timing is how long things take on the network's clock. Zero takes no time,
// save where said.
type Timing struct {
	Attach time.Duration // a successful attach
	Refuse time.Duration // an attach that is refused
	Silent time.Duration // an attach that is never answered; 0: the recorded 10 s
	Reset  time.Duration // a controller's resetting after its target went or came
	Detach time.Duration
	HotAdd time.Duration // until an initiator sees a namespace that was added
}

// MeasuredTiming is what the recorded process took.
func MeasuredTiming() Timing {
	return Timing{
		Attach: 155 * time.Millisecond,
		Refuse: 15 * time.Millisecond,
		Silent: 10 * time.Second,
		Reset:  740 * time.Millisecond,
		Detach: 20 * time.Millisecond,
	}
}

// Config is one process.
type Config struct {
	Socket  string
	Flavour Flavour
	// SNAP adds the methods that expose devices to a host [R].
	SNAP bool
	// Envelope lets SNAP's methods answer as SNAP5 does [R]: a result of
	// status, result and message, never an error.
	Envelope bool
	// RBD adds bdev_rbd_*.
	RBD bool
	// Without are methods that the process does not know.
	Without []string
	// Root is where the process's file system begins; empty is the machine's.
	Root string
	// Addresses are the IP addresses beside loopback where it may listen.
	Addresses []string
	// WaitForRPC starts it before its framework is initialised.
	WaitForRPC bool
	Timing     Timing
}

// Process is one SPDK process with its socket. Kill and Start may be called
// at any time; all else of it may be called while it runs or not.
type Process struct {
	config  Config
	network *Network
	methods map[string]method
	listed  []string

	turn   sync.Mutex     // one Start or Kill at a time
	life   *life          // nil while it does not run; both locks change it
	closed bool           // by turn
	failed error          // by turn: of a restart that a fault ordered
	acting sync.WaitGroup // what faults do with the process

	// Guarded by the network's lock.
	faults []*ordered
	calls  []Call
	state
}

// state is what a process forgets when it ends.
type state struct {
	initialised  bool
	hostNQN      string // of attaches that name none
	bdevs        []*bdev
	bdevOf       map[string]*bdev // by name, alias and uuid
	nextMalloc   int
	lvstores     []*lvstore
	controllers  []*controller
	connectLimit time.Duration // bdev_nvme_set_options tcp_connect_timeout_ms
	transports   []string
	fsdevs       []fsdev
	keys         []key
	clusters     []string
	snap         snap
	virtioFS     virtioFS
}

// life is a process between its start and its end.
type life struct {
	ctx      context.Context
	end      context.CancelFunc
	listener net.Listener
	serving  sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// Start starts a process on the network. Close ends it.
func (n *Network) Start(c Config) (*Process, error) {
	p := &Process{config: c, network: n}
	p.methods, p.listed = methodsOf(c)
	if err := p.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// Socket is the path of the process's socket.
func (p *Process) Socket() string { return p.config.Socket }

// Start starts a process that was killed. It has forgotten everything.
func (p *Process) Start() error {
	p.turn.Lock()
	defer p.turn.Unlock()
	return p.start()
}

func (p *Process) start() error {
	if p.closed {
		return errors.New("spdktest: the process is closed")
	}
	if p.life != nil {
		return errors.New("spdktest: the process runs already")
	}
	l, err := listen(p.config.Socket)
	if err != nil {
		return err
	}
	p.network.change(func() {
		p.life = l
		p.state = state{
			initialised: !p.config.WaitForRPC,
			hostNQN:     "nqn.2014-08.org.nvmexpress:uuid:" + uuid.NewString(),
			snap:        newSNAP(),
			bdevOf:      map[string]*bdev{},
		}
		p.network.processes = append(p.network.processes, p)
	})
	l.serving.Go(func() { p.accept(l) })
	return nil
}

func listen(path string) (*life, error) {
	// A killed process leaves its socket behind.
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket != 0 {
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return nil, fmt.Errorf("spdktest: the socket %s is in use", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	ctx, end := context.WithCancel(context.Background())
	return &life{ctx: ctx, end: end, listener: ln, conns: map[net.Conn]struct{}{}}, nil
}

// Kill ends the process as SIGKILL does: connections break, everything that is
// not in a file is gone, and the socket stays behind without a listener.
func (p *Process) Kill() {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.kill()
}

func (p *Process) kill() {
	l := p.life
	if l == nil {
		return
	}
	p.network.change(func() {
		p.life = nil
		l.end()
		for _, s := range slices.Clone(p.network.subsystems) {
			if s.owner == p {
				p.network.drop(s)
			}
		}
		p.state = state{}
		p.network.processes = slices.DeleteFunc(p.network.processes, func(x *Process) bool { return x == p })
	})
	l.refuse()
	l.mu.Lock()
	for c := range l.conns {
		c.Close()
	}
	l.mu.Unlock()
	l.serving.Wait()
}

// refuse ends the listening at once, also where a program that is just being
// started has not yet closed what it inherited: to whoever starts the process
// again the socket would look as if it were in use.
func (l *life) refuse() {
	if u, ok := l.listener.(*net.UnixListener); ok {
		if raw, err := u.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
		}
	}
	l.listener.Close()
}

// Restart kills the process and starts it again.
func (p *Process) Restart() error {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.kill()
	return p.start()
}

// Close kills the process for good, removes its socket and tells of a restart
// that was ordered and failed.
func (p *Process) Close() error {
	p.turn.Lock()
	p.closed = true
	p.kill()
	p.turn.Unlock()
	p.acting.Wait()
	if p.failed != nil {
		return p.failed
	}
	if err := os.Remove(p.config.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// alive tells whether a life of the process is still the one that runs.
func (p *Process) alive(l *life) bool { return p.life == l }

func newUUID() string { return uuid.NewString() }

func newVUID(kind string) string {
	// As SNAP shows them [I]: a serial, the kind of function, its number.
	return "MT" + rand.Text()[:10] + kind
}
