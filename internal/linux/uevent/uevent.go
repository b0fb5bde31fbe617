// Package uevent tells what the kernel tells udev: devices that come, go,
// change, and get or lose a driver, as netlink(7) has it under
// NETLINK_KOBJECT_UEVENT.
package uevent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Action is what happened to a device.
type Action string

// The kernel's actions, and one of this package.
const (
	Add     Action = "add"
	Remove  Action = "remove"
	Change  Action = "change"
	Move    Action = "move"
	Online  Action = "online"
	Offline Action = "offline"
	Bind    Action = "bind"
	Unbind  Action = "unbind"

	// Lost is no event of a device: others were not heard, because nobody
	// listened before, because they came faster than they were read, or
	// because one could not be understood.
	Lost Action = "lost"
)

// Event is one message of the kernel.
type Event struct {
	Action    Action
	DevPath   string // below sysfs, as /devices/pci0000:3b/0000:3b:02.1; "" of Lost
	Subsystem string // pci, net, ...
	// Values are all that the kernel said, ACTION, DEVPATH and SUBSYSTEM as well.
	Values map[string]string
}

const (
	kernelGroup = 1       // the other one, 2, is udev's own
	longest     = 8 << 10 // the kernel's own bound is 2 KiB and the path
	queue       = 2 << 20 // some thousand events, as making 256 functions gives
)

// Watch calls with each event until the context ends, whose cause it returns,
// or the socket fails. The first call is with Lost, as soon as it listens.
//
// It hears what the network namespace of the calling thread does: events of
// network devices are for their namespace alone, and others for namespaces that
// belong to the machine's first user namespace. Deaf tells.
func Watch(ctx context.Context, each func(Event)) error {
	file, err := listen()
	if err != nil {
		return fmt.Errorf("listen to the kernel's events of devices: %w", err)
	}
	defer func() { _ = file.Close() }()
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("listen to the kernel's events of devices: %w", err)
	}
	hooked := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(hooked)
		_ = file.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !unhook() {
			<-hooked
		}
	}()
	each(Event{Action: Lost})
	buffer := make([]byte, longest)
	for {
		message, err := receive(raw, buffer)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.ENOBUFS):
			each(Event{Action: Lost})
		case err != nil:
			return fmt.Errorf("listen to the kernel's events of devices: %w", err)
		case message != nil:
			each(parse(message))
		}
	}
}

func listen() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// A short queue is no fault, only more often Lost.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queue) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "uevent"), nil
}

// receive waits for a message; nil is one that is not the kernel's. One that is
// longer than the buffer comes cut off, and is not understood.
func receive(raw syscall.RawConn, buffer []byte) (message []byte, err error) {
	var n int
	var from unix.Sockaddr
	waited := raw.Read(func(fd uintptr) bool {
		for {
			n, from, err = unix.Recvfrom(int(fd), buffer, 0)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if err = errors.Join(waited, os.NewSyscallError("recvfrom", err)); err != nil {
		return nil, err
	}
	if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
		return nil, nil
	}
	return buffer[:n], nil
}

// parse reads add@/devices/... and, each behind a zero byte, KEY=VALUE. What it
// does not understand may be any event, and is Lost.
func parse(message []byte) Event {
	lost := Event{Action: Lost}
	header, rest, _ := bytes.Cut(message, []byte{0})
	action, path, ok := bytes.Cut(header, []byte("@"))
	if !ok || !bytes.HasSuffix(rest, []byte{0}) {
		return lost
	}
	e := Event{Values: make(map[string]string, bytes.Count(rest, []byte{0}))}
	for field := range bytes.SplitSeq(rest[:len(rest)-1], []byte{0}) {
		key, value, ok := bytes.Cut(field, []byte("="))
		if !ok || len(key) == 0 {
			return lost
		}
		e.Values[string(key)] = string(value)
	}
	e.Action, e.DevPath, e.Subsystem = Action(e.Values["ACTION"]), e.Values["DEVPATH"], e.Values["SUBSYSTEM"]
	if e.Action == "" || e.Action == Lost || e.DevPath == "" || e.DevPath[0] != '/' ||
		string(e.Action) != string(action) || e.DevPath != string(path) {
		return lost
	}
	return e
}
