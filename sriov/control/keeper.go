package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// withdrawBound is how long one call of DisableDevices may take. A plugin's own
// bound is shorter; one that does not answer is asked again on a new connection.
const withdrawBound = 30 * time.Second

// KeeperConfig says where a Keeper holds what.
type KeeperConfig struct {
	Socket  string // of the plugin: its absolute path, or unix:///path
	Logger  *slog.Logger
	Metrics prometheus.Registerer // nil: none
	// Recheck: after this process stood still, as one that got SIGSTOP, and lost
	// the devices by that, nothing is enabled before the next Enable: what it knew
	// may have changed meanwhile. Else it enables again by itself. Whoever sets it
	// listens to Changed.
	Recheck bool
}

// Keeper holds the gate of a plugin open for as long as it is told to, over
// restarts of the plugin. Its methods may be called from any goroutine; they
// have effect while Run runs.
//
// It does not fight: when another daemon takes over, or somebody has the devices
// taken back, it stays without them until the next Enable, and says so.
type Keeper struct {
	config  KeeperConfig
	metrics *keeperMetrics
	kick    chan struct{}
	changed chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	mail    []keepEvent
	status  KeeperStatus
	asks    map[uint64]chan answer
	lastAsk uint64
	clients map[uint64]*Client // of streams that are connected
	started bool
	ended   bool

	// The goroutine of Run owns these.
	machine keep
	cancel  map[uint64]context.CancelFunc
	work    sync.WaitGroup
	opened  bool
}

// NewKeeper makes a Keeper that holds nothing. Errors: a path that is none,
// metrics that cannot be registered.
func NewKeeper(c KeeperConfig) (*Keeper, error) {
	path, err := unixsock.ParseEndpoint(c.Socket)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	c.Socket, c.Logger = path, cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	m, err := newKeeperMetrics(c.Metrics)
	if err != nil {
		return nil, err
	}
	return &Keeper{
		config: c, metrics: m, kick: make(chan struct{}, 1), changed: make(chan struct{}, 1), done: make(chan struct{}),
		status: KeeperStatus{State: StateIdle, Since: time.Now()}, asks: map[uint64]chan answer{}, clients: map[uint64]*Client{},
		machine: keep{recheck: c.Recheck, spread: spread}, cancel: map[uint64]context.CancelFunc{},
	}, nil
}

// spread makes keepers that failed together try again apart.
func spread(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// Enable asks for the devices from now on, and returns at once. The same claim
// again changes nothing, unless the Keeper has stopped trying. Another claim takes
// over from the one before without a withdrawal between, so whoever changes what
// the devices are calls Disable first.
func (k *Keeper) Enable(c Claim) { k.post(wanted{c}) }

// Disable asks for nothing from now on, and has the devices taken back from
// whoever holds them, also from another daemon: the caller is about to change
// them. It returns when the plugin has acknowledged that, when there is nobody
// who could (no error; Reason tells why), or with an error: when ctx ends, when
// somebody enables meanwhile, when the socket cannot be used. After an error the
// devices may still be offered; a stream that stands is still being ended.
//
// A plugin that restarts meanwhile is waited for and asked again.
func (k *Keeper) Disable(ctx context.Context) (Withdrawal, error) {
	waiting := make(chan answer, 1)
	k.mu.Lock()
	k.lastAsk++
	id := k.lastAsk
	k.asks[id] = waiting
	k.mu.Unlock()
	k.post(unwanted{id})
	select {
	case a := <-waiting:
		return a.result, a.err
	case <-ctx.Done():
	case <-k.done:
	}
	k.mu.Lock()
	delete(k.asks, id)
	reason := cmp.Or(k.status.Reason, "no answer yet")
	k.mu.Unlock()
	k.post(askGone{id})
	select {
	case a := <-waiting: // at the last moment
		return a.result, a.err
	default:
	}
	err := ctx.Err()
	if err == nil {
		err = errors.New("the keeper has ended")
	}
	return Withdrawal{Reason: reason}, fmt.Errorf("the plugin at %s has not acknowledged that the devices are taken back (%s): %w", k.config.Socket, reason, err)
}

// Status tells how the Keeper is. The caller does not change what it points to.
func (k *Keeper) Status() KeeperStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// Changed gets a value after the status changed: several changes may be one.
// Heartbeats are none. It is for one listener.
func (k *Keeper) Changed() <-chan struct{} { return k.changed }

// Run keeps until ctx ends, and returns its error. The streams then end as if
// the daemon were lost, so that a hold time covers the restart of a daemon; who
// wants the devices taken back calls Disable before. It runs once.
func (k *Keeper) Run(ctx context.Context) error {
	k.mu.Lock()
	again := k.started
	k.started = true
	k.mu.Unlock()
	if again {
		return errors.New("a keeper runs once")
	}
	ctx, stop := context.WithCancel(ctx)
	defer k.end()
	defer stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.kick:
		case <-timer.C:
		}
		for _, event := range append(k.take(), tick{}) {
			if e, over := event.(streamEnded); over {
				delete(k.cancel, e.stream)
			}
			for _, a := range k.machine.step(time.Now(), event) {
				k.act(ctx, a)
			}
		}
		if at := k.machine.next(); at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(at))
		}
	}
}

// end waits for what runs, which has been told to end.
func (k *Keeper) end() {
	k.work.Wait()
	k.metrics.held.Set(0)
	k.mu.Lock()
	k.ended, k.mail = true, nil
	k.status = KeeperStatus{State: StateIdle, Since: time.Now(), Reason: "the keeper has ended"}
	k.mu.Unlock()
	close(k.done)
}

// post leaves an event for the owner. What a newer one makes pointless is
// replaced, so that nothing piles up.
func (k *Keeper) post(e keepEvent) {
	k.mu.Lock()
	if !k.ended {
		k.mail = append(slices.DeleteFunc(k.mail, func(old keepEvent) bool { return obsolete(old, e) }), e)
	}
	k.mu.Unlock()
	signal(k.kick)
}

func obsolete(old, by keepEvent) bool {
	switch o := old.(type) {
	case statusHeard:
		n, same := by.(statusHeard)
		return same && o.stream == n.stream
	case wanted: // a Disable between the two is answered all the same
		_, same := by.(wanted)
		return same
	}
	return false
}

func (k *Keeper) take() []keepEvent {
	k.mu.Lock()
	defer k.mu.Unlock()
	mail := k.mail
	k.mail = nil
	return mail
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
