// Package workload is the oracle of the tests that end cleat csi abruptly: a
// concurrent workload of every mutating call, with a model of what was
// acknowledged, and checks that every acknowledged operation is there, that
// every byte is right, and that nothing is left that nobody owns. The driver
// runs on a Machine: this one, where it is killed, or a guest, which loses its
// power; the oracle stays here and survives both.
package workload

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

var (
	// ErrDown: the driver or its machine is gone. A call that ends so is in
	// doubt: its effect may be there or not.
	ErrDown = errors.New("the driver is down")
	// ErrAtPoint: the driver came by the point that it was armed for before it
	// served, and is down.
	ErrAtPoint = errors.New("the driver came by its point before it served")
)

// Machine is the place where the driver runs and its volumes are used.
type Machine interface {
	// Launch starts the driver, and its machine if that is down, and returns
	// when it serves. With a point, <name>=<count>, the driver goes no further
	// than to the count-th time that it comes by there. Errors: ErrAtPoint.
	Launch(ctx context.Context, point string) (Driver, error)
	// Reboots reports whether Kill takes the whole machine along.
	Reboots() bool

	// What follows is done beside the driver; site.Site has the details. Each
	// returns ErrDown when the machine goes down meanwhile.
	Write(ctx context.Context, at site.Spot, seed uint64, sync bool) error
	Check(ctx context.Context, at site.Spot, seeds ...uint64) error
	Look(ctx context.Context) (site.Sight, error)
	MakeDir(ctx context.Context, path string) error
	Remove(ctx context.Context, path string) error
}

// Driver is a running cleat csi.
type Driver interface {
	Conn() *grpc.ClientConn
	// DialMetrics connects to where its metrics are served.
	DialMetrics(ctx context.Context) (net.Conn, error)
	// Done is closed when the driver has ended or stands at its point.
	Done() <-chan struct{}
	// Hit reports whether it came by its point; it is sure after Kill.
	Hit() bool
	// Kill ends the driver at once.
	Kill() error
	// Stop ends the driver as an administrator does.
	Stop() error
	Log() string
}
