package uevent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(checkVariable) != "" {
		printMissing()
		return
	}
	goleak.VerifyTestMain(m)
}

func message(fields ...string) []byte { return []byte(strings.Join(fields, "\x00") + "\x00") }

func TestParse(t *testing.T) {
	bind := Event{Action: Bind, DevPath: "/devices/pci0000:3b/0000:3b:02.1", Subsystem: "pci", Values: map[string]string{
		"ACTION": "bind", "DEVPATH": "/devices/pci0000:3b/0000:3b:02.1", "SUBSYSTEM": "pci",
		"DRIVER": "vfio-pci", "MODALIAS": "pci:v=1", "EMPTY": "",
	}}
	lost := Event{Action: Lost}
	head := "bind@/devices/pci0000:3b/0000:3b:02.1"
	for name, c := range map[string]struct {
		message []byte
		want    Event
	}{
		"whole": {message(head, "ACTION=bind", "DEVPATH=/devices/pci0000:3b/0000:3b:02.1", "SUBSYSTEM=pci",
			"DRIVER=vfio-pci", "MODALIAS=pci:v=1", "EMPTY="), bind},
		"empty":             {nil, lost},
		"udev's own":        {message("libudev", "ACTION=add", "DEVPATH=/x"), lost},
		"no values":         {message("add@/devices/x"), lost},
		"truncated":         {[]byte("add@/x\x00ACTION=add\x00DEVPATH=/x"), lost},
		"no action":         {message("add@/x", "DEVPATH=/x"), lost},
		"another action":    {message("add@/x", "ACTION=remove", "DEVPATH=/x"), lost},
		"another path":      {message("add@/x", "ACTION=add", "DEVPATH=/y"), lost},
		"relative path":     {message("add@x", "ACTION=add", "DEVPATH=x"), lost},
		"not key and value": {message("add@/x", "ACTION=add", "DEVPATH=/x", "WHAT"), lost},
		"no key":            {message("add@/x", "ACTION=add", "DEVPATH=/x", "=what"), lost},
		"says it was lost":  {message("lost@/x", "ACTION=lost", "DEVPATH=/x"), lost},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Diff(t, "result", c.want, parse(c.message))
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message("add@/devices/x", "ACTION=add", "DEVPATH=/devices/x", "SUBSYSTEM=net"))
	f.Add([]byte("add@/x\x00ACTION=add\x00DEVPATH=/x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e := parse(data)
		if e.Action == "" || e.Action != Lost && e.DevPath == "" || e.Action == Lost && e.Values != nil {
			t.Errorf("%q is %+v", data, e)
		}
	})
}

func watching(t *testing.T) (<-chan Event, func(cause error) error) {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	events, ended := make(chan Event, 1<<16), make(chan error, 1)
	go func() {
		ended <- Watch(ctx, func(e Event) { events <- e })
	}()
	stop := func(cause error) error {
		cancel(cause)
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(testkit.Timeout):
			return errors.New("it does not end")
		}
	}
	t.Cleanup(func() { _ = stop(nil) })
	return events, stop
}

func trigger(t *testing.T, mark string) {
	t.Helper()
	testkit.Must(t, os.WriteFile("/sys/class/net/lo/uevent", []byte("change 5ee70a32-6ab1-4d03-9d0a-000000000007 MARK="+mark), 0))
}

func TestWatch(t *testing.T) {
	events, stop := watching(t)
	if first := <-events; first.Action != Lost {
		t.Errorf("the first event is %+v", first)
	}
	mark := fmt.Sprint("m", os.Getpid())
	trigger(t, mark)
	e := testkit.ReceiveUntil(t, "the event", events, func(e Event) bool { return e.Values["SYNTH_ARG_MARK"] == mark })
	if e.Action != Change || e.Subsystem != "net" || e.DevPath != "/devices/virtual/net/lo" || e.Values["INTERFACE"] != "lo" {
		t.Errorf("%+v", e)
	}
	cause := errors.New("enough")
	testkit.WantError(t, "stop", stop(cause), cause)
}

// A slow reader gets Lost, and then later events.
func TestOverflow(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	events, listening, flooded, ended := make(chan Event, 1<<16), make(chan struct{}), make(chan struct{}), make(chan error, 1)
	first := true
	go func() {
		ended <- Watch(ctx, func(e Event) {
			if first {
				first = false
				close(listening)
				<-flooded
			}
			events <- e
		})
	}()
	defer func() {
		cancel()
		<-ended
	}()
	<-listening
	for range 4 * queue / 1024 { // each takes about 1 KiB of the queue
		trigger(t, "flood")
	}
	close(flooded)
	isLost := func(e Event) bool { return e.Action == Lost }
	testkit.ReceiveUntil(t, "a loss", events, isLost)
	testkit.ReceiveUntil(t, "a loss", events, isLost)
	mark := fmt.Sprint("o", os.Getpid())
	again := time.NewTicker(20 * time.Millisecond) // the queue can still be full
	defer again.Stop()
	late := time.After(testkit.Timeout)
	for {
		select {
		case <-again.C:
			trigger(t, mark)
		case e := <-events:
			if e.Values["SYNTH_ARG_MARK"] == mark {
				return
			}
		case <-late:
			t.Fatal("no more events are received")
		}
	}
}

func TestEndedBefore(t *testing.T) {
	ctx := testkit.Canceled(t)
	if err := Watch(ctx, func(Event) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

func TestForeignMessages(t *testing.T) {
	file := testkit.Open(listen())(t)
	raw := testkit.Value(file.SyscallConn())(t)
	var own unix.Sockaddr
	var failed error
	if err := raw.Control(func(fd uintptr) { own, failed = unix.Getsockname(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	other := testkit.Value(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT))(t)
	defer func() { _ = unix.Close(other) }()
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: own.(*unix.SockaddrNetlink).Pid}
	testkit.Must(t, unix.Sendto(other, message("add@/x", "ACTION=add", "DEVPATH=/x"), 0, to))
	trigger(t, "foreign")
	for {
		m := testkit.Value(receive(raw, make([]byte, longest)))(t)
		if m == nil {
			return // the foreign message was ignored
		}
		if parse(m).DevPath == "/x" {
			t.Fatal("a foreign message was accepted")
		}
	}
}

const checkVariable = "UEVENT_TEST_CHECK"

func printMissing() { fmt.Print(CheckNamespace()) }

func TestCheckNamespace(t *testing.T) {
	if err := CheckNamespace(); err != nil {
		t.Logf("this is no host: %v", err)
	}
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	for name, c := range map[string]struct {
		attributes syscall.SysProcAttr
		want       error
	}{
		"network namespace":                    {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}, ErrNoNetdevs},
		"network namespace of a user's":        {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWUSER, UidMappings: mapping}, ErrNoDevices},
		"user namespace in the same network's": {syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: mapping}, CheckNamespace()},
	} {
		t.Run(name, func(t *testing.T) {
			ask := exec.CommandContext(t.Context(), "/proc/self/exe")
			ask.Env, ask.SysProcAttr = []string{checkVariable + "=1"}, &c.attributes
			if answer, err := ask.Output(); err != nil || string(answer) != fmt.Sprint(c.want) {
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
}
