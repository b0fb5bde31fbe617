package workload

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/crash/workload/site"
	"github.com/cleatproject/cleat/test/driver"
)

// Local is this machine. An armed driver kills itself at its crash point.
type Local struct {
	Cleat string   // a build with the tag crashpoints
	Dir   string   // the driver's files
	Flags []string // for every start
	site.Site
}

var _ Machine = (*Local)(nil)

// hits is the file to which an armed driver writes the crash point that kills
// it.
func (l *Local) hits() string { return filepath.Join(l.Dir, "hits") }

// metrics is the socket of the driver's metrics.
func (l *Local) metrics() string { return filepath.Join(l.Dir, "metrics", "metrics.sock") }

func (l *Local) Launch(ctx context.Context, point string) (Driver, error) {
	_ = os.Remove(l.hits())
	var env []string
	if point != "" {
		env = []string{"CLEAT_CRASHPOINT=" + point, "CLEAT_CRASHPOINT_LOG=" + l.hits()}
	}
	flags := append([]string{"--metrics-address", l.metrics()}, l.Flags...)
	p, err := driver.Launch(ctx, l.Cleat, l.Dir, "driver", env, flags...)
	if err != nil && l.hit() {
		return nil, ErrAtPoint
	}
	if err != nil {
		return nil, err
	}
	return process{p, l}, nil
}

func (l *Local) hit() bool {
	data, err := os.ReadFile(l.hits())
	return err == nil && len(data) > 0
}

func (l *Local) Reboots() bool { return false }

func (l *Local) Write(_ context.Context, at site.Spot, seed uint64, sync bool) error {
	return l.Site.Write(at, seed, sync)
}

func (l *Local) Check(_ context.Context, at site.Spot, seeds ...uint64) error {
	return l.Site.Check(at, seeds...)
}

func (l *Local) MakeDir(_ context.Context, path string) error { return l.Site.MakeDir(path) }

func (l *Local) Remove(_ context.Context, path string) error { return l.Site.Remove(path) }

type process struct {
	process *driver.Process
	local   *Local
}

func (p process) Conn() *grpc.ClientConn { return p.process.Conn }
func (p process) Done() <-chan struct{}  { return p.process.Done() }
func (p process) Hit() bool              { return p.local.hit() }
func (p process) Kill() error            { return p.process.Kill() }
func (p process) Log() string            { return p.process.Log.String() }

func (p process) DialMetrics(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", p.local.metrics())
}

func (p process) Stop() error {
	if err := p.process.Stop(); err != nil {
		return errors.Join(err, errors.New(p.Log()))
	}
	return nil
}
