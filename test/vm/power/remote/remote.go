// Package remote gives the host access to a site.Site in a guest over one
// connection, and reports the crash point at which the guest's driver stopped.
package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

// ErrGone means that the connection ended before the answer: the operation
// might have been done.
var ErrGone = errors.New("the guest is gone")

// name is the name of the RPC service.
const name = "Site"

// service is the net/rpc service.
type service struct {
	site  site.Site
	stops <-chan string
}

// None is an empty argument or answer.
type None struct{}

// Data is a spot and the data to write, or the possible data to check.
type Data struct {
	At    site.Spot
	Seeds []uint64
	Sync  bool // of Write
}

func (s service) Write(d Data, _ *None) error        { return s.site.Write(d.At, d.Seeds[0], d.Sync) }
func (s service) Check(d Data, _ *None) error        { return s.site.Check(d.At, d.Seeds...) }
func (s service) MakeDir(path string, _ *None) error { return s.site.MakeDir(path) }
func (s service) Remove(path string, _ *None) error  { return s.site.Remove(path) }

func (s service) Look(_ None, view *site.Snapshot) (err error) {
	*view, err = s.site.Look(context.Background())
	return err
}

// Stop waits for a driver that stops at a crash point.
func (s service) Stop(_ None, point *string) error {
	stop, ok := <-s.stops
	if !ok {
		return errors.New("the guest no longer reports crash points")
	}
	*point = stop
	return nil
}

// Serve serves one connection until it ends. stops yields crash points.
func Serve(conn io.ReadWriteCloser, s site.Site, stops <-chan string) error {
	server := rpc.NewServer()
	if err := server.RegisterName(name, service{s, stops}); err != nil {
		return err
	}
	server.ServeConn(conn)
	return nil
}

// Client is the host's side. It is safe for concurrent use. Its methods return
// ErrGone if the guest powers off before the answer.
type Client struct{ rpc *rpc.Client }

// NewClient returns a client that owns the connection.
func NewClient(conn io.ReadWriteCloser) *Client { return &Client{rpc.NewClient(conn)} }

// Close closes the connection and cancels pending calls.
func (c *Client) Close() error { return c.rpc.Close() }

func (c *Client) Write(ctx context.Context, at site.Spot, seed uint64, sync bool) error {
	return c.call(ctx, "Write", Data{At: at, Seeds: []uint64{seed}, Sync: sync}, &None{})
}

func (c *Client) Check(ctx context.Context, at site.Spot, seeds ...uint64) error {
	return c.call(ctx, "Check", Data{At: at, Seeds: seeds}, &None{})
}

func (c *Client) Look(ctx context.Context) (site.Snapshot, error) {
	var view site.Snapshot
	err := c.call(ctx, "Look", None{}, &view)
	return view, err
}

// MakeDir is site.Site.MakeDir.
func (c *Client) MakeDir(ctx context.Context, path string) error {
	return c.call(ctx, "MakeDir", path, &None{})
}

// Remove is site.Site.Remove.
func (c *Client) Remove(ctx context.Context, path string) error {
	return c.call(ctx, "Remove", path, &None{})
}

// Stop waits for the next crash point at which a driver stops.
func (c *Client) Stop(ctx context.Context) (point string, err error) {
	err = c.call(ctx, "Stop", None{}, &point)
	return point, err
}

func (c *Client) call(ctx context.Context, method string, args, reply any) error {
	call := c.rpc.Go(name+"."+method, args, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
	case <-ctx.Done():
		return ctx.Err()
	}
	var inside rpc.ServerError
	switch err := call.Error; {
	case err == nil:
		return nil
	case errors.As(err, &inside):
		return fmt.Errorf("in the guest: %s", inside)
	default:
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
}
