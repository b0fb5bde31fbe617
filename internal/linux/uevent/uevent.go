// Package uevent receives the kernel's device events (NETLINK_KOBJECT_UEVENT,
// the source of udev).
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

// Action is the kind of an event.
type Action string

const (
	Add     Action = "add"
	Remove  Action = "remove"
	Change  Action = "change"
	Move    Action = "move"
	Online  Action = "online"
	Offline Action = "offline"
	Bind    Action = "bind"
	Unbind  Action = "unbind"

	// Lost means that events are missing, or that Watch has just started.
	Lost Action = "lost"
)

// Event is one kernel message.
type Event struct {
	Action    Action
	DevPath   string // path below sysfs, such as /devices/pci0000:3b/0000:3b:02.1; "" for Lost
	Subsystem string // pci, net, ...
	// Values includes ACTION, DEVPATH and SUBSYSTEM.
	Values map[string]string
}

const (
	kernelGroup = 1       // multicast group of the kernel; group 2 is udev's
	longest     = 8 << 10 // the kernel's limit is 2 KiB plus the path
	queue       = 2 << 20 // some thousand events, as of 256 new VFs
)

// Watch calls each for every event until the context ends, whose cause it
// returns, or the socket fails. The first event is Lost, once the socket
// receives events.
//
// Events of network devices are sent to their own namespace, all others to
// namespaces owned by the initial user namespace. See CheckNamespace.
func Watch(ctx context.Context, each func(Event)) error {
	file, err := listen()
	if err != nil {
		return fmt.Errorf("watch kernel device events: %w", err)
	}
	defer func() { _ = file.Close() }()
	raw, err := file.SyscallConn()
	if err != nil {
		return fmt.Errorf("watch kernel device events: %w", err)
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
			return fmt.Errorf("watch kernel device events: %w", err)
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
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, queue) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, queue)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "uevent"), nil
}

// receive returns nil if the kernel did not send the message. A truncated
// message becomes Lost.
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

// parse decodes "add@/devices/..." and zero-separated KEY=VALUE pairs. An
// invalid message becomes Lost.
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
