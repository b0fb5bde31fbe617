package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

// fakePluginStatus is a plugin with a status set by the test.
type fakePluginStatus struct {
	control.Plugin
	now atomic.Pointer[gate.Status]
}

func (p *fakePluginStatus) Status() gate.Status { return *p.now.Load() }

// serveOn serves until the test ends.
func serveOn(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "control.sock")
	l := testkit.Value(net.Listen("unix", socket))(t)
	s := grpc.NewServer()
	register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func startFakePluginStatus(t *testing.T, s gate.Status) (*fakePluginStatus, string) {
	t.Helper()
	p := &fakePluginStatus{}
	p.now.Store(&s)
	return p, serveOn(t, func(g *grpc.Server) {
		control.NewServer(control.ServerConfig{Plugin: p, Version: "1.2"}).Register(g)
	})
}

func runStatus(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, _, err := execute(t, newSriovStatusCommand(), "", args...)
	return out, err
}

var servingStatus = gate.Status{
	State: gate.Failed, Holding: gate.Live, Pools: 2, Devices: 9, Generation: 7, UID: "0b0c", Hash: "sha256:ab", Error: "example.com/b: no\x1b[31m kubelet",
	Resources: map[string]gate.Report{
		"example.com/b": {Phase: gate.Withdrawing, Devices: 1, Allocating: 2, Error: "no kubelet"},
		"example.com/a": {Phase: gate.Offered, Devices: 9, Offered: 8, Streaming: true},
	},
}

func TestSriovStatus(t *testing.T) {
	_, socket := startFakePluginStatus(t, servingStatus)
	got := testkit.Value(runStatus(t, "--control-socket", socket))(t)
	want := `PLUGIN          cleat 1.2
State           ERROR
Controlled by   config daemon, generation 7 of node state 0b0c
Offers          9 devices of 2 resources
Configuration   sha256:ab
Error           example.com/b: no\x1b[31m kubelet
example.com/a   offered: 8 of 9 devices
example.com/b   withdrawing: 0 of 1 device; 2 allocations in flight; no kubelet connected; no kubelet
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	got = testkit.Value(runStatus(t, "--control-socket", "unix://"+socket, "-o", "json"))(t)
	var d sriovStatus
	testkit.Must(t, json.Unmarshal([]byte(got), &d))
	document := sriovStatus{
		Plugin: "cleat", Version: "1.2", Extensions: control.Extensions, State: "ERROR", Control: "held", Generation: 7, UID: "0b0c", Hash: "sha256:ab",
		Pools: 2, Devices: 9, Error: servingStatus.Error, Resources: []sriovStatusRow{
			{Name: "example.com/a", State: "offered", Devices: 9, Offered: 8, Kubelet: true},
			{Name: "example.com/b", State: "withdrawing", Devices: 1, Allocating: 2, Error: "no kubelet"},
		},
	}
	if diff := cmp.Diff(document, d); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	if !strings.Contains(got, `"kubelet_connected": true`) {
		t.Errorf("got %s", got)
	}
}

func TestSriovStatusHolder(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, of := range []struct {
		status gate.Status
		want   string
	}{
		{gate.Status{Holding: gate.NotControlled}, "none: not in controlled mode"},
		{gate.Status{Holding: gate.Waiting}, "none: waiting for a config daemon"},
		{gate.Status{Holding: gate.Live, Generation: 3}, "config daemon, generation 3"},
		{gate.Status{Holding: gate.Live, Generation: 3, LeaseEnds: now.Add(1230 * time.Millisecond)}, "config daemon, generation 3, lease ends in 1.2s"},
		{gate.Status{Holding: gate.Lost, Generation: 3, HoldEnds: now.Add(time.Minute)}, "none: generation 3 lost, hold time ends in 1m0s"},
		{gate.Status{Holding: gate.Lost, Generation: 3}, "none: generation 3 lost, hold time running"},
		{gate.Status{}, "unknown"},
	} {
		d := newSriovStatus(of.status, control.Version{})
		if got := d.holder(now); got != of.want {
			t.Errorf("%+v: got %q, want %q", of.status, got, of.want)
		}
		var out bytes.Buffer
		if err := cli.Print(&out, cli.FormatJSON, d.table(now), d); err != nil || strings.Contains(out.String(), "0001-01-01") || !strings.Contains(out.String(), `"resources": []`) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}

func TestSriovStatusWaits(t *testing.T) {
	p, socket := startFakePluginStatus(t, gate.Status{State: gate.Initializing, Holding: gate.Waiting})
	inTime(t, "the state that it was in", 500*time.Millisecond, func(timeout string) bool {
		_, err := runStatus(t, "--control-socket", socket, "--wait", "SERVING", "--timeout", timeout)
		if !errors.Is(err, context.DeadlineExceeded) || !saysAll(err, "to be SERVING: ") {
			t.Fatalf("got %v", err)
		}
		return saysAll(err, "plugin is in state INITIALIZING")
	})
	done := make(chan error, 1)
	go func() {
		_, err := runStatus(t, "--control-socket", socket, "--wait", "SERVING")
		done <- err
	}()
	p.now.Store(&gate.Status{State: gate.Serving, Holding: gate.Live})
	if err := <-done; err != nil {
		t.Error(err)
	}
	nowhere := filepath.Join(t.TempDir(), "none.sock")
	inTime(t, "that the plugin is absent", 500*time.Millisecond, func(timeout string) bool {
		_, err := runStatus(t, "--control-socket", nowhere, "--wait", "SERVING", "--timeout", timeout)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		return errors.Is(err, control.ErrNotServed)
	})
}

func TestSriovStatusErrors(t *testing.T) {
	old := serveOn(t, func(g *grpc.Server) {
		controlv1.RegisterControlServiceServer(g, controlv1.UnimplementedControlServiceServer{})
	})
	silent := filepath.Join(t.TempDir(), "silent.sock")
	l := testkit.Value(net.Listen("unix", silent))(t)
	defer func() { _ = l.Close() }()
	rude := filepath.Join(t.TempDir(), "rude.sock")
	r := testkit.Value(net.Listen("unix", rude))(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := r.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	defer func() { _ = r.Close(); <-ended }()
	for name, of := range map[string]struct {
		args []string
		says string // in the end, where args has a short time
	}{
		"absent":        {[]string{"--control-socket", "/nowhere/x.sock", "--timeout", "500ms"}, "no plugin serves the control socket /nowhere/x.sock"},
		"proposal":      {[]string{"--control-socket", old}, "serves only the published proposal"},
		"proposal wait": {[]string{"--control-socket", old, "--wait", "SERVING"}, "serves only the published proposal"},
		"silent":        {[]string{"--control-socket", silent, "--timeout", "500ms"}, "listens at " + silent + " does not respond"},
		"rude":          {[]string{"--control-socket", rude}, "might not be a device plugin, or refuses this user"},
		"rude wait":     {[]string{"--control-socket", rude, "--wait", "SERVING", "--timeout", "500ms"}, "to be SERVING: connection to plugin lost"},
		"relative":      {[]string{"--control-socket", "x.sock"}, "relative path"},
		"state":         {[]string{"--wait", "serving"}, "INITIALIZING, SERVING, ERROR, STOPPING"},
		"timeout":       {[]string{"--timeout", "-1s"}, "negative"},
		"argument":      {[]string{"x"}, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			args := slices.Clone(of.args)
			inTime(t, of.says, 500*time.Millisecond, func(timeout string) bool {
				late := len(args) > 1 && args[len(args)-2] == "--timeout" && args[len(args)-1] != "-1s"
				if late {
					args[len(args)-1] = timeout
				}
				out, err := runStatus(t, args...)
				if said := saysAll(err, of.says); said || late && errors.Is(err, context.DeadlineExceeded) {
					return said
				}
				t.Errorf("got %v, %s", err, out)
				return true
			})
		})
	}
	denied := explainSriov("/s", &net.OpError{Op: "dial", Err: errPermission{}})
	if !strings.HasPrefix(denied.Error(), "querying the plugin at /s requires root") {
		t.Error(denied)
	}
	if other := explainSriov("/s", &gate.End{Code: codes.Unavailable, Reason: "the plugin is shutting down"}); other.Error() != "the plugin is shutting down (Unavailable)" {
		t.Error(other)
	}
}

// errPermission is the error of connect for users without permission.
type errPermission struct{}

func (errPermission) Error() string { return "permission denied" }
func (errPermission) Is(target error) bool {
	return target.Error() == "permission denied"
}
