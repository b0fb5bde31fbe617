// Package register is the plugin side of kubelet's plugin registration
// (pluginregistration v1): a plugin that embeds it needs no registrar beside it.
// It keeps a socket in the host's directory, answers the host's questions, and
// knows what has become of the registration.
package register

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

const (
	defaultSilence = 30 * time.Second
	defaultEvery   = 2 * time.Second
	// restless is the age below which a socket that was taken away is not put
	// back at once: somebody removes it as fast as it comes.
	restless = time.Second
)

// Registrar registers one plugin with whatever watches the directory. Serve it
// once the plugin's endpoint is served, and Stop it before that ends.
type Registrar struct {
	plugin  Plugin
	socket  string
	silence time.Duration
	every   time.Duration
	logger  *slog.Logger
	server  *server.GRPC
	told    func(registered bool, text string)

	stop    sync.Once
	stopped chan struct{} // closed by Stop
	loop    sync.Mutex    // held while Serve runs

	mu     sync.Mutex
	record record

	reports reporter
}

// New checks the settings and makes a Registrar. It touches nothing yet:
// whatever can change while the plugin runs, as a directory that is not there,
// is no error here but a state.
func New(c Config) (*Registrar, error) {
	socket, err := c.check()
	if err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Silence == 0 {
		c.Silence = defaultSilence
	}
	if c.Every == 0 {
		c.Every = defaultEvery
	}
	r := &Registrar{
		plugin: c.Plugin, socket: socket, silence: c.Silence, every: c.Every, logger: c.Logger, told: c.Told,
		stopped: make(chan struct{}),
		record:  record{missing: errors.New("the plugin has not begun to register"), changed: time.Now()},
	}
	r.server, err = server.NewGRPC(server.GRPCConfig{
		Logger: c.Logger, Metrics: c.Metrics, Code: status.Code,
		Quiet: func(string) bool { return true }, // what matters of them is logged here
	})
	if err != nil {
		return nil, fmt.Errorf("registration: %w", err)
	}
	registration.RegisterRegistrationServer(r.server, service{Registrar: r})
	return r, nil
}

// Serve keeps the socket in its place, and answers, until Stop or the end of
// ctx. It returns an error only when it has to leave a socket behind.
func (r *Registrar) Serve(ctx context.Context) error {
	r.loop.Lock()
	defer r.loop.Unlock()
	inner, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() {
		defer cancel()
		select {
		case <-r.stopped:
		case <-inner.Done():
		}
	})
	k := &keeper{Registrar: r, serving: &running, ctx: ctx}
	watch := newSentry(r.socket, r.logger)
	defer watch.close()
	for inner.Err() == nil && !r.isStopped() {
		watch.arm()
		k.keep(inner)
		k.findWatchers()
		r.report()
		watch.wait(inner, k.pause())
	}
	err := k.withdraw()
	if ctx.Err() != nil { // nobody will call Stop
		_ = r.server.Drain(ctx)
	}
	return err
}

// Stop takes the socket away, so that the host deregisters the plugin, and
// waits for calls under way.
func (r *Registrar) Stop(ctx context.Context) error {
	r.stop.Do(func() { close(r.stopped) })
	r.loop.Lock() // Serve has returned, or will at once
	defer r.loop.Unlock()
	return r.server.Drain(ctx)
}

func (r *Registrar) isStopped() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return false
	}
}

// Status tells how the registration stands.
func (r *Registrar) Status() Status {
	r.mu.Lock()
	s := r.record.status(time.Now(), r.silence)
	r.mu.Unlock()
	s.Plugin, s.Socket = r.plugin, r.socket
	return s
}

// Check fails while the plugin is not registered, for /readyz: no host uses it
// then.
func (r *Registrar) Check(context.Context) error {
	switch s := r.Status(); {
	case s.State == Registered:
		return nil
	case s.Error != "":
		return fmt.Errorf("not registered (%s): %s; %s", s.State, s.Error, s.Reason)
	case s.Reason != "":
		return fmt.Errorf("not registered (%s): %s", s.State, s.Reason)
	case s.State == Asked:
		return errors.New("not registered (asked): a host has asked, and has not said yet what came of it")
	default:
		return fmt.Errorf("not registered (%s): no host has asked yet", s.State)
	}
}

// note changes the record and logs what that means.
func (r *Registrar) note(change func(*record, time.Time)) {
	r.mu.Lock()
	change(&r.record, time.Now())
	r.mu.Unlock()
	r.report()
}

// keeper holds what only Serve uses.
type keeper struct {
	*Registrar
	serving  *sync.WaitGroup
	ctx      context.Context // of the calls, which outlive the loop until Stop has drained them
	listener *unixsock.Listener
	made     time.Time
	rest     time.Time // before which none is made, whatever happens
}
