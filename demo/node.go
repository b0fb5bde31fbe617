package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/cleatproject/cleat/internal/server"
)

// nodeRequest is a request to the double of a node.
type nodeRequest struct {
	Do       string   `json:"do"` // look, await, start, end, restart
	Resource string   `json:"resource"`
	Offered  int      `json:"offered,omitempty"`
	Capacity *int     `json:"capacity,omitempty"`
	Past     int      `json:"past,omitempty"` // await more registrations than this
	Pod      string   `json:"pod,omitempty"`
	Count    int      `json:"count,omitempty"`
	Insist   bool     `json:"insist,omitempty"` // call the plugin even if the kubelet has no healthy device
	Devices  []string `json:"devices,omitempty"`
}

// nodeAnswer is the state of the node after a request.
type nodeAnswer struct {
	Error, Refused     string
	At                 time.Time
	Offered, Capacity  int // of the kubelet
	Functions, Devices []string
	Registrations      int
	Changes            []nodeChange
	Env                map[string]string
	Nodes              []string
}

// nodeChange is one write of the number of functions.
type nodeChange struct{ NumVFs, Offered int }

// call sends the double a request and waits for its answer.
func (s *sriov) call(ctx context.Context, o nodeRequest) (a nodeAnswer, err error) {
	o.Resource = sriovResource
	conn, err := new(net.Dialer).DialContext(ctx, "unix", s.at("node.sock"))
	if err != nil {
		return a, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if err = json.NewEncoder(conn).Encode(o); err == nil {
		err = json.NewDecoder(conn).Decode(&a)
	}
	if err == nil && a.Error != "" {
		err = fmt.Errorf("double of a node: %q: %s; the kubelet offers %d of %d, the machine has %d functions", o.Do, a.Error, a.Offered, a.Capacity, len(a.Functions))
	}
	return a, err
}

// awaitOffered waits until the kubelet offers n functions.
func (s *sriov) awaitOffered(ctx context.Context, n int) nodeAnswer {
	return must(s.call(ctx, nodeRequest{Do: "await", Offered: n}))
}

// checkRefused fails unless the kubelet has no function for a pod and the
// plugin refuses Allocate.
func (s *sriov) checkRefused(ctx context.Context) {
	a := must(s.call(ctx, nodeRequest{Do: "start", Pod: "refused", Count: 1}))
	want(a.Refused != "", "the kubelet gave a pod %q while nothing was offered", a.Devices)
	want(len(a.Functions) > 0, "the machine has no virtual functions any more, although nothing should have removed them")
	first := a.Functions[:1]
	a = must(s.call(ctx, nodeRequest{Do: "start", Insist: true, Devices: first}))
	want(a.Refused != "", "the plugin allowed Allocate of %q while nothing was offered", first)
}

// checkChanges fails unless exactly these numbers of functions were set after
// the first since changes, while nothing was offered.
func checkChanges(a nodeAnswer, since int, numbers ...int) {
	var got []int
	for _, c := range a.Changes[since:] {
		got = append(got, c.NumVFs)
		want(c.Offered == 0, "the kubelet offered %d functions while their number changed to %d", c.Offered, c.NumVFs)
	}
	want(slices.Equal(got, numbers) && (len(numbers) == 0 || len(a.Functions) == numbers[len(numbers)-1]),
		"the numbers of functions set were %v, and the machine has %d; want %v", got, len(a.Functions), numbers)
}

// daemonPhase returns the daemon's phase.
func (s *sriov) daemonPhase(ctx context.Context) (string, error) {
	var status struct{ SRIOV struct{ Phase string } }
	err := server.Ask(ctx, s.at("daemon.sock"), "/status", &status)
	return status.SRIOV.Phase, err
}

// between formats the time from one instant to another.
func between(from, to time.Time) string { return short(to.Sub(from).Seconds()) }
