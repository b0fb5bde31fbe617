package discovery_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/uevent"
	"github.com/cleatproject/cleat/sriov/discovery"
)

// heard runs Watch on events that are given, and counts the kicks.
func heard(t *testing.T, devices []uevent.Event, links []netlinks.Event) int64 {
	t.Helper()
	var kicks atomic.Int64
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- discovery.Watch(ctx, discovery.WatchConfig{
				Devices: func(ctx context.Context, each func(uevent.Event)) error {
					for _, e := range devices {
						each(e)
					}
					<-ctx.Done()
					return ctx.Err()
				},
				Links: func(ctx context.Context, each func(netlinks.Event)) error {
					for _, e := range links {
						each(e)
					}
					<-ctx.Done()
					return ctx.Err()
				},
				Warn: func(err error) { t.Errorf("warned of %v", err) },
			}, func() { kicks.Add(1) })
		}()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
	return kicks.Load()
}

func TestWhichEventsKick(t *testing.T) {
	device := func(action uevent.Action, subsystem, path string) uevent.Event {
		return uevent.Event{Action: action, Subsystem: subsystem, DevPath: path}
	}
	const vf = "/devices/pci0000:3b/0000:3b:02.1"
	for _, e := range []uevent.Event{
		{Action: uevent.Lost},
		device(uevent.Add, "pci", vf),
		device(uevent.Remove, "pci", vf),
		device(uevent.Bind, "pci", vf),
		device(uevent.Unbind, "pci", vf),
		device(uevent.Move, "net", vf+"/net/eth0"),
		device(uevent.Add, "infiniband", vf+"/infiniband/mlx5_2"),
		device(uevent.Add, "infiniband_verbs", vf+"/infiniband_verbs/uverbs2"),
		device(uevent.Add, "infiniband_mad", vf+"/infiniband_mad/umad2"),
		device(uevent.Add, "uio", vf+"/uio/uio0"),
		device(uevent.Add, "vfio", "/devices/virtual/vfio/12"),
		device(uevent.Bind, "vdpa", vf+"/vdpa0"),
		device(uevent.Add, "auxiliary", "/devices/pci0000:3b/0000:3b:00.0/mlx5_core.sf.4"),
		{Action: uevent.Add, Subsystem: "misc", DevPath: "/devices/virtual/misc/rdma_cm", Values: map[string]string{"DEVNAME": "infiniband/rdma_cm"}},
	} {
		if heard(t, []uevent.Event{e}, nil) != 1 {
			t.Errorf("unheard: %+v", e)
		}
	}
	for _, e := range []uevent.Event{
		device(uevent.Add, "net", "/devices/virtual/net/veth1"),
		device(uevent.Add, "queues", vf+"/net/eth0/queues/rx-0"),
		device(uevent.Change, "block", "/devices/virtual/block/loop0"),
		device(uevent.Add, "misc", "/devices/virtual/misc/fuse"),
	} {
		if heard(t, []uevent.Event{e}, nil) != 0 {
			t.Errorf("for nothing: %+v", e)
		}
	}
	for kicks, links := range [][]netlinks.Event{
		0: {{Link: &netlinks.Link{Index: 3, Name: "veth1", Kind: "veth"}}, {}},
		1: {{Lost: true}},
		2: {{DefaultRoute: true}, {Link: &netlinks.Link{Index: 4, Name: "eth0"}}},
		3: {{Link: &netlinks.Link{Index: 4, Name: "eth0"}, Gone: true}, {Link: &netlinks.Link{Index: 5, Kind: "bond"}}, {Link: &netlinks.Link{Index: 6, Kind: "vlan"}}},
	} {
		if got := heard(t, nil, links); got != int64(kicks) {
			t.Errorf("%d kicks of %+v", got, links)
		}
	}
}

// What fails is tried again: soon where something was heard, else later and later.
func TestListenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		broken := errors.New("no buffer space")
		var at []time.Duration
		var warned int
		began := time.Now()
		done := make(chan error, 1)
		go func() {
			done <- discovery.Watch(ctx, discovery.WatchConfig{
				Devices: func(_ context.Context, each func(uevent.Event)) error {
					at = append(at, time.Since(began))
					if len(at) == 9 { // 0, 1, 3, 7, 15, 31, 63, 95, 127 s
						each(uevent.Event{Action: uevent.Lost})
					}
					return broken
				},
				Links: func(ctx context.Context, _ func(netlinks.Event)) error {
					<-ctx.Done()
					return ctx.Err()
				},
				Warn: func(err error) {
					warned++
					if !errors.Is(err, broken) {
						t.Errorf("warned of %v", err)
					}
				},
			}, func() {})
		}()
		time.Sleep(129500 * time.Millisecond)
		synctest.Wait()
		want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 95, 127, 128}
		cause := errors.New("enough")
		cancel(cause)
		if err := <-done; !errors.Is(err, cause) {
			t.Errorf("it ended with %v", err)
		}
		if len(at) != len(want) || warned != len(want) {
			t.Fatalf("tried at %v, warned %d times", at, warned)
		}
		for i := range want {
			if at[i] != want[i]*time.Second {
				t.Errorf("try %d was at %v, want %d s", i, at[i], want[i])
			}
		}
	})
}

// On this machine, a device with an event that somebody asks the kernel for.
func TestWatchThisMachine(t *testing.T) {
	devices, err := os.ReadDir("/sys/bus/pci/devices")
	if err != nil || len(devices) == 0 {
		t.Fatalf("this machine has no PCI function: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kicks, ended := make(chan struct{}, 1<<16), make(chan error, 1)
	go func() {
		ended <- discovery.Watch(ctx, discovery.WatchConfig{
			Warn: func(err error) {
				if !strings.Contains(err.Error(), "network namespace") {
					t.Errorf("warned of %v", err)
				}
			},
		}, func() { kicks <- struct{}{} })
	}()
	await := func(what string) {
		t.Helper()
		select {
		case <-kicks:
		case <-time.After(30 * time.Second):
			t.Fatalf("no kick %s", what)
		}
	}
	await("of one socket that listens")
	await("of the other")
	name := fmt.Sprintf("/sys/bus/pci/devices/%s/uevent", devices[0].Name())
	if err := os.WriteFile(name, []byte("change"), 0); err != nil {
		t.Fatal(err)
	}
	await("after an event")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
