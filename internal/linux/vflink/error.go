package vflink

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// subject is what a request was about.
type subject struct {
	link     string
	vf       *int   // of the link's table
	function string // PCI address
	mtu      bool
}

func (s subject) String() string {
	switch {
	case s.function != "":
		return s.function
	case s.vf != nil:
		return fmt.Sprintf("VF %d of %s", *s.vf, s.link)
	}
	return s.link
}

// fail says what was asked for, the kernel's answer and what usually is wrong;
// nil stays nil.
func fail(what string, s subject, err error) error {
	if err == nil {
		return nil
	}
	said, cause := "", err
	if op, ok := errors.AsType[*netlink.OpError](err); ok {
		cause = op.Err
		if op.Message != "" {
			said = fmt.Sprintf(" (the kernel says %q)", op.Message)
		}
	}
	if h := hint(s, err); h != "" {
		said += ": " + h
	}
	return fmt.Errorf("%s %s: %w%s", what, s, cause, said)
}

func hint(s subject, err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return "the driver refuses it, or the process lacks CAP_NET_ADMIN"
	case errors.Is(err, unix.ENODEV) && s.function == "":
		return "this network namespace has no such link"
	case errors.Is(err, unix.ENODEV):
		return "the function is not there, or its driver does not have this"
	case errors.Is(err, unix.EOPNOTSUPP) && s.vf != nil:
		return "the driver of the link cannot do it: it must be the physical function's, and its driver a table of virtual functions"
	case errors.Is(err, unix.EOPNOTSUPP):
		return "the driver cannot do it"
	case errors.Is(err, unix.EINVAL) && s.mtu:
		return "the MTU must be one that the driver allows (ip -d link shows minmtu and maxmtu)"
	case errors.Is(err, unix.EINVAL) && s.vf != nil:
		return "the physical function must have made a virtual function of that index, and a MAC address must be a unicast one"
	case errors.Is(err, unix.EBUSY):
		return "something uses it: a guest, a container, or other functions of the device"
	}
	return ""
}
