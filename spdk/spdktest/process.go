package spdktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// Flavour is the variant of SPDK.
type Flavour int

const (
	// Upstream is the recorded 26.09-pre.
	Upstream Flavour = iota
	// Fork is NVIDIA's fork of 24.01 [R]: without keyring and DH-HMAC-CHAP,
	// with a path as psk, NVDA_TCP, and fsdev_get_fsdevs.
	Fork
)

// Timing has durations on the network's clock; zero is no delay, unless noted.
type Timing struct {
	Attach time.Duration // a successful attach
	Refuse time.Duration // a refused attach
	Silent time.Duration // for a silent target; 0: the recorded 10 s
	Reset  time.Duration // of a controller after its target was lost or returned
	Detach time.Duration
	HotAdd time.Duration // until an initiator sees an added namespace
	// RemoveHost is how long the sessions of a host continue after the response
	// to nvmf_subsystem_remove_host, as in releases before 26.05.
	RemoveHost time.Duration
}

// MeasuredTiming has the durations of the recorded process.
func MeasuredTiming() Timing {
	return Timing{
		Attach: 155 * time.Millisecond,
		Refuse: 15 * time.Millisecond,
		Silent: 10 * time.Second,
		Reset:  740 * time.Millisecond,
		Detach: 20 * time.Millisecond,
	}
}

// Config configures a process.
type Config struct {
	Socket  string
	Flavour Flavour
	// SNAP adds the methods that expose devices to a host [R].
	SNAP bool
	// Envelope makes SNAP's methods respond like SNAP 5 [R]: a result with
	// status, result and message, never an error.
	Envelope bool
	// RBD adds bdev_rbd_*.
	RBD bool
	// Without are missing methods.
	Without []string
	// Root of the process's file system; empty is the machine's.
	Root string
	// Addresses to listen on, in addition to loopback.
	Addresses []string
	// Source is the address of the process as an initiator; empty: that of the
	// target.
	Source string
	// WaitForRPC starts the process before its framework is initialised.
	WaitForRPC bool
	Timing     Timing
}

// Process is an SPDK process with its socket. Its methods work whether it runs
// or not.
type Process struct {
	config  Config
	network *Network
	methods map[string]method
	listed  []string

	turn   sync.Mutex     // serialises Start and Kill
	life   *life          // nil: not running; changed with both locks held
	closed bool           // guarded by turn
	failed error          // guarded by turn: of a restart by a fault
	acting sync.WaitGroup // kills and restarts by faults

	// Guarded by the network's lock.
	faults []*pendingFault
	calls  []Call
	counts map[string]int
	// loading: HoldExamine is in effect.
	loading bool
	// inflated: HoldInflate is in effect, up to this number of clusters.
	inflated *uint64
	creating bool // HoldCreate is in effect
	// deletesHeld: HoldDelete is in effect.
	deletesHeld bool
	state
}

type state struct {
	initialised  bool
	hostNQN      string // default for attaches
	hostID       string
	bdevs        []*bdev
	bdevOf       map[string]*bdev // by name, alias and uuid
	nextMalloc   int
	lvstores     []*lvstore
	controllers  []*controller
	connectLimit time.Duration // bdev_nvme_set_options tcp_connect_timeout_ms
	transports   []string
	fsdevs       []fsdev
	keys         []*key
	clusters     []string
	snap         snap
	virtioFS     virtioFS
}

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

// Socket returns the path of the process's socket.
func (p *Process) Socket() string { return p.config.Socket }

// Start starts a killed process, without its state.
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
		return errors.New("spdktest: the process is already running")
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
			hostID:      newUUID(),
			bdevOf:      map[string]*bdev{},
		}
		p.network.processes = append(p.network.processes, p)
	})
	l.serving.Go(func() { p.accept(l) })
	return nil
}

func listen(path string) (*life, error) {
	// A killed process leaves its socket.
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

// Kill works like SIGKILL: connections break, state that is not in a file is
// lost, and the socket remains without a listener.
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
	shut(l.listener)
	l.mu.Lock()
	for c := range l.conns {
		shut(c)
	}
	l.mu.Unlock()
	l.serving.Wait()
}

// shut ends a socket with shutdown(2), and closes it. After close(2) alone, a
// forked child that has not yet executed its program keeps the socket open: the
// peer can send a request that no process reads.
func shut(socket io.Closer) {
	if s, ok := socket.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
		}
	}
	socket.Close()
}

// Restart kills the process and starts it again.
func (p *Process) Restart() error {
	p.turn.Lock()
	defer p.turn.Unlock()
	p.kill()
	return p.start()
}

// Close kills the process, removes its socket, and returns the error of a
// failed restart by a fault.
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

func (p *Process) alive(l *life) bool { return p.life == l }

func newUUID() string { return uuid.NewString() }
