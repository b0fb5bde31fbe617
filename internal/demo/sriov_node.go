package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// nodeOrder is what the double of a node is told.
type nodeOrder struct {
	Do       string   `json:"do"` // look, await, start, end, restart
	Resource string   `json:"resource,omitempty"`
	Offered  int      `json:"offered,omitempty"`
	Capacity *int     `json:"capacity,omitempty"`
	Past     int      `json:"past,omitempty"` // await more registrations than these
	Pod      string   `json:"pod,omitempty"`
	Count    int      `json:"count,omitempty"`
	Insist   bool     `json:"insist,omitempty"` // ask the plugin past the kubelet
	Devices  []string `json:"devices,omitempty"`
}

// nodeAnswer is what there is when an order is done.
type nodeAnswer struct {
	Error, Refused              string
	At                          time.Time
	Offered, Capacity           int // by the kubelet
	Healthy, Functions, Devices []string
	Registrations               int
	Changes                     []nodeChange
	Env                         map[string]string
	Nodes                       []string
}

// nodeChange is one of the number of functions, and what was offered when the
// machine was told.
type nodeChange struct {
	NumVFs, Offered, Capacity int
	At                        time.Time
}

// tellNode gives the double an order and waits until it is done.
func (w *walk) tellNode(ctx context.Context, o nodeOrder) (nodeAnswer, error) {
	o.Resource = sriovResource
	var a nodeAnswer
	conn, err := new(net.Dialer).DialContext(ctx, "unix", w.nodeSocket())
	if err != nil {
		return a, fmt.Errorf("the double of a node does not answer: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err = json.NewEncoder(conn).Encode(o); err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	switch {
	case err != nil:
		return a, fmt.Errorf("the double of a node does not answer %q: %w", o.Do, err)
	case a.Error != "":
		return a, fmt.Errorf("the double of a node says to %q: %s; the kubelet offers %d of %d, the machine has %d functions", o.Do, a.Error, a.Offered, a.Capacity, len(a.Functions))
	}
	return a, nil
}

// awaitOffered waits until the kubelet offers so many functions.
func (w *walk) awaitOffered(ctx context.Context, n int) (nodeAnswer, error) {
	a, err := w.tellNode(ctx, nodeOrder{Do: "await", Offered: n})
	if err != nil {
		err = fmt.Errorf("the kubelet should offer %d functions: %w", n, err)
	}
	return a, err
}

// checkRefused wants the kubelet to have nothing for a pod, and the plugin to
// give nothing either, though it is asked past the kubelet.
func (w *walk) checkRefused(ctx context.Context) error {
	a, err := w.tellNode(ctx, nodeOrder{Do: "start", Pod: "refused", Count: 1})
	if err != nil {
		return err
	}
	if a.Refused == "" {
		return fmt.Errorf("nothing is offered, and the kubelet gives a pod %q", a.Devices)
	}
	if len(a.Functions) == 0 {
		return errors.New("the machine has no virtual functions any more, and nobody was to remove them")
	}
	a, err = w.tellNode(ctx, nodeOrder{Do: "start", Insist: true, Devices: a.Functions[:1]})
	if err == nil && a.Refused == "" {
		err = fmt.Errorf("nothing is offered, and the plugin does not refuse Allocate of %s", a.Functions[0])
	}
	return err
}

// checkChanges wants the machine to have been told these numbers since then, in
// turn, and nothing to have been offered with any of them.
func checkChanges(a nodeAnswer, since int, want ...int) error {
	var got []int
	for _, c := range a.Changes[since:] {
		got = append(got, c.NumVFs)
		if c.Offered > 0 {
			return fmt.Errorf("the kubelet offered %d functions while their number became %d", c.Offered, c.NumVFs)
		}
	}
	if listed(got) != listed(want) || len(want) > 0 && len(a.Functions) != want[len(want)-1] {
		return fmt.Errorf("the machine was told to have %s virtual functions, and has %d; it should have been %s", listed(got), len(a.Functions), listed(want))
	}
	return nil
}

// daemonPhase asks the daemon how far it is.
func (w *walk) daemonPhase(ctx context.Context) (string, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", w.daemonStatus())
	}}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://daemon/status", nil)
	if err != nil {
		return "", err
	}
	answer, err := c.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var s struct{ SRIOV struct{ Phase string } }
	err = json.NewDecoder(answer.Body).Decode(&s)
	return s.SRIOV.Phase, err
}

// startIn starts a command in the network namespace of another process. It ends
// with the demo.
func (w *walk) startIn(other *process, what string, cmd *exec.Cmd) (p *process, err error) {
	theirs, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", other.pid()))
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", what, err)
	}
	defer theirs.Close()
	runtime.LockOSThread() // the thread has the namespace, and what it starts
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("start the %s: %w", what, err)
	}
	defer own.Close()
	if err = unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err == nil {
		p, err = w.startCommand(what, cmd, false)
	}
	if back := unix.Setns(int(own.Fd()), unix.CLONE_NEWNET); back != nil {
		// The thread stays with this goroutine, so that nobody else gets it.
		return p, errors.Join(err, fmt.Errorf("leave the network namespace of the double: %w", back))
	}
	runtime.UnlockOSThread()
	return p, err
}
