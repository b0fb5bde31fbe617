package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"
)

// nodeOrder is a request to the double of a node.
type nodeOrder struct {
	Do       string   `json:"do"` // look, await, start, end, restart
	Resource string   `json:"resource"`
	Offered  int      `json:"offered,omitempty"`
	Capacity *int     `json:"capacity,omitempty"`
	Past     int      `json:"past,omitempty"` // await more registrations than these
	Pod      string   `json:"pod,omitempty"`
	Count    int      `json:"count,omitempty"`
	Insist   bool     `json:"insist,omitempty"` // ask the plugin, whatever the kubelet knows
	Devices  []string `json:"devices,omitempty"`
}

// nodeAnswer is the state of the node when an order is done.
type nodeAnswer struct {
	Error, Refused     string
	At                 time.Time
	Offered, Capacity  int // by the kubelet
	Functions, Devices []string
	Registrations      int
	Changes            []nodeChange
	Env                map[string]string
	Nodes              []string
}

// nodeChange is one of the number of functions.
type nodeChange struct{ NumVFs, Offered int }

// ask gives the double an order and waits until it is done.
func (s *sriov) ask(ctx context.Context, o nodeOrder) (a nodeAnswer, err error) {
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
		err = fmt.Errorf("the double of a node answers %q: %s; the kubelet offers %d of %d, the machine has %d functions", o.Do, a.Error, a.Offered, a.Capacity, len(a.Functions))
	}
	return a, err
}

// awaitOffered waits until the kubelet offers so many functions.
func (s *sriov) awaitOffered(ctx context.Context, n int) nodeAnswer {
	return must(s.ask(ctx, nodeOrder{Do: "await", Offered: n}))
}

// refused wants the kubelet to have nothing for a pod, and the plugin to refuse
// Allocate for a caller that asks nevertheless.
func (s *sriov) refused(ctx context.Context) {
	a := must(s.ask(ctx, nodeOrder{Do: "start", Pod: "refused", Count: 1}))
	want(a.Refused != "", "nothing is offered, and the kubelet gives a pod %q", a.Devices)
	want(len(a.Functions) > 0, "the machine has no virtual functions any more, and nothing was to remove them")
	first := a.Functions[:1]
	a = must(s.ask(ctx, nodeOrder{Do: "start", Insist: true, Devices: first}))
	want(a.Refused != "", "nothing is offered, and the plugin does not refuse Allocate of %q", first)
}

// checkChanges wants these numbers of functions to have been set since then, in
// turn, and nothing to have been offered meanwhile.
func checkChanges(a nodeAnswer, since int, numbers ...int) {
	var got []int
	for _, c := range a.Changes[since:] {
		got = append(got, c.NumVFs)
		want(c.Offered == 0, "the kubelet offered %d functions while their number became %d", c.Offered, c.NumVFs)
	}
	want(slices.Equal(got, numbers) && (len(numbers) == 0 || len(a.Functions) == numbers[len(numbers)-1]),
		"the numbers of functions set were %v, and there are %d; want %v", got, len(a.Functions), numbers)
}

// daemonPhase asks the daemon for its phase.
func (s *sriov) daemonPhase(ctx context.Context) (string, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.at("daemon.sock"))
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
	var status struct{ SRIOV struct{ Phase string } }
	err = json.NewDecoder(answer.Body).Decode(&status)
	return status.SRIOV.Phase, err
}

// between writes the time from one instant to another.
func between(from, to time.Time) string { return short(to.Sub(from).Seconds()) }
