package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/unixsock"
)

type command struct {
	// look, await, start, end or restart.
	Do       string `json:"do"`
	Resource string `json:"resource"` // of look, await, start

	Offered  int  `json:"offered"`  // await: until so many are offered
	Capacity *int `json:"capacity"` // await: and shows so many
	Past     int  `json:"past"`     // await: and was registered more often

	Pod     string   `json:"pod"`   // start, end
	Count   int      `json:"count"` // start
	Insist  bool     `json:"insist"`
	Devices []string `json:"devices"` // start that insists
}

type answer struct {
	Error   string `json:"error,omitempty"`
	Refused string `json:"refused,omitempty"` // start: not admitted

	At            time.Time `json:"at"`
	Offered       int       `json:"offered"` // by the kubelet
	Capacity      int       `json:"capacity"`
	Healthy       []string  `json:"healthy"`
	Registrations int       `json:"registrations"`
	Functions     []string  `json:"functions"` // virtual ones, by index
	Changes       []change  `json:"changes"`   // of their number

	Devices []string          `json:"devices,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Nodes   []string          `json:"nodes,omitempty"` // in the container
}

// commandServer serves orders on a socket.
type commandServer struct {
	node     *node
	listener *unixsock.Listener
	ctx      context.Context
	end      context.CancelFunc
	work     sync.WaitGroup
}

func listen(ctx context.Context, socket string, n *node) (*commandServer, error) {
	l, err := unixsock.Listen(ctx, unixsock.Address{Path: socket, SharedDir: true, AnyLength: true})
	if err != nil {
		return nil, err
	}
	o := &commandServer{node: n, listener: l}
	o.ctx, o.end = context.WithCancel(ctx)
	o.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			o.work.Go(func() { o.serve(conn) })
		}
	})
	return o, nil
}

func (o *commandServer) close() error {
	o.end()
	err := o.listener.Close()
	o.work.Wait()
	return err
}

func (o *commandServer) serve(conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(o.ctx, func() { _ = conn.Close() })()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	in.DisallowUnknownFields()
	for {
		var next command
		err := in.Decode(&next)
		if errors.Is(err, io.EOF) || o.ctx.Err() != nil {
			return
		}
		var a answer
		if err == nil {
			a, err = o.do(next)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if out.Encode(a) != nil || err != nil {
			return
		}
	}
}

const awaitBound = 30 * time.Second

func (o *commandServer) do(next command) (a answer, err error) {
	ctx, cancel := context.WithTimeout(o.ctx, awaitBound)
	defer cancel()
	switch next.Do {
	case "look":
	case "await":
		err = o.node.kubelet.Await(ctx, func() bool { return o.node.is(next) })
	case "start":
		a, err = o.node.startPod(ctx, next)
	case "end":
		err = o.node.endPod(next.Pod)
	case "restart":
		err = o.node.restart()
	default:
		err = fmt.Errorf("there is no order %q; they are look, await, start, end, restart", next.Do)
	}
	o.node.describe(next.Resource, &a)
	return a, err
}

func (n *node) is(o command) bool {
	return n.kubelet.Allocatable(o.Resource) == o.Offered && n.kubelet.Registrations(o.Resource) > o.Past &&
		(o.Capacity == nil || n.capacity(o.Resource) == *o.Capacity)
}

func (n *node) describe(resource string, a *answer) {
	a.At = time.Now()
	a.Healthy = n.kubelet.Healthy(resource)
	a.Offered, a.Capacity, a.Registrations = len(a.Healthy), n.capacity(resource), n.kubelet.Registrations(resource)
	a.Functions, a.Changes = n.kernel.tree.Virtual(card().Address), n.kernel.changes()
}
