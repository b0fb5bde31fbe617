// Package workload is the oracle of the tests that end cleat csi abruptly: a
// concurrent workload of every mutating call, a model of the acknowledged
// state, and checks that every acknowledged operation and every byte is there
// and no object is left without an owner. The driver runs on a Machine: this
// one, where it is killed, or a guest, which loses its power; the oracle runs
// here and survives both.
package workload

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

var (
	// ErrDown: the driver or its machine is gone. The effect of a call that
	// ends so is unknown.
	ErrDown = errors.New("the driver is down")
	// ErrAtPoint: the driver reached its crash point before it served, and is
	// down.
	ErrAtPoint = errors.New("the driver reached its crash point before it served")
)

// Machine is where the driver runs and its volumes are used.
type Machine interface {
	// Launch starts the driver, and its machine if that is down, and returns
	// when it serves. With a point, <name>=<count>, the driver dies when it
	// reaches the point for the count-th time. Errors: ErrAtPoint.
	Launch(ctx context.Context, point string) (Driver, error)
	// Reboots reports whether Kill also stops the machine.
	Reboots() bool

	// The methods below bypass the driver; site.Site has the details. Each
	// returns ErrDown when the machine goes down meanwhile.
	Write(ctx context.Context, at site.Spot, seed uint64, sync bool) error
	Check(ctx context.Context, at site.Spot, seeds ...uint64) error
	Look(ctx context.Context) (site.Snapshot, error)
	MakeDir(ctx context.Context, path string) error
	Remove(ctx context.Context, path string) error
}

// Driver is a running cleat csi.
type Driver interface {
	Conn() *grpc.ClientConn
	// DialMetrics connects to the driver's metrics.
	DialMetrics(ctx context.Context) (net.Conn, error)
	// Done is closed when the driver has ended or stopped at its crash point.
	Done() <-chan struct{}
	// Hit reports whether it reached its crash point; reliable after Kill.
	Hit() bool
	// Kill ends the driver immediately.
	Kill() error
	// Stop ends the driver gracefully.
	Stop() error
	Log() string
}
