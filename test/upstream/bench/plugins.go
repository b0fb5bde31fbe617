package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// plugin responds at once, with its own server, as a process with one plugin
// has.
type plugin struct {
	registration.UnimplementedRegistrationServer
	path   string
	server *grpc.Server
	served chan struct{}

	bound    int64 // in nanoseconds since 1970, just before bind
	asked    atomic.Int64
	attempts atomic.Int64
	notified atomic.Int64 // of success
}

func newPlugin(path string) *plugin {
	p := &plugin{path: path, server: grpc.NewServer(), served: make(chan struct{})}
	registration.RegisterRegistrationServer(p.server, p)
	return p
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	p.attempts.Add(1)
	p.asked.CompareAndSwap(0, time.Now().UnixNano())
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: filepath.Base(p.path), SupportedVersions: []string{"1.0.0"}}, nil
}

func (p *plugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.PluginRegistered {
		p.notified.Store(time.Now().UnixNano())
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func (p *plugin) serve() error {
	p.bound = time.Now().UnixNano()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: p.path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	go func() {
		defer close(p.served)
		_ = p.server.Serve(l) // until end
	}()
	return nil
}

func (p *plugin) end() {
	p.server.Stop()
	<-p.served
}

// crowd is many plugins in one directory.
type crowd []*plugin

func newCrowd(dir string, n int) crowd {
	all := make(crowd, n)
	for i := range all {
		all[i] = newPlugin(filepath.Join(dir, fmt.Sprintf("plugin-%d.sock", i)))
	}
	return all
}

func (c crowd) serve() error {
	for _, p := range c {
		if err := p.serve(); err != nil {
			return err
		}
	}
	return nil
}

func (c crowd) remove() error {
	var failed []error
	for _, p := range c {
		failed = append(failed, os.Remove(p.path))
	}
	return errors.Join(failed...)
}

func (c crowd) end() {
	var ending sync.WaitGroup
	for _, p := range c {
		ending.Go(p.end)
	}
	ending.Wait()
}

// awaitNotified waits until all plugins are notified of their registration, or
// the time is over, and returns how many are not.
func (c crowd) awaitNotified(ctx context.Context, within time.Duration) (missing int) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		missing = 0
		for _, p := range c {
			if p.notified.Load() == 0 {
				missing++
			}
		}
		if missing == 0 {
			return 0
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return missing
		}
	}
}

// span is the time from the first GetInfo to the last Notify.
func (c crowd) span() time.Duration {
	var first int64
	for _, p := range c {
		if at := p.asked.Load(); at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return time.Duration(c.last() - first)
}

// last is the time of the last notification.
func (c crowd) last() (at int64) {
	for _, p := range c {
		at = max(at, p.notified.Load())
	}
	return at
}

// repeated returns the attempts beyond one for each plugin.
func (c crowd) repeated() int {
	n := -len(c)
	for _, p := range c {
		n += int(max(p.attempts.Load(), 1))
	}
	return n
}
