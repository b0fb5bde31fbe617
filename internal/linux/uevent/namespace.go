package uevent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// initialUserNamespace is the inode of the initial user namespace
// (PROC_USER_INIT_INO).
const initialUserNamespace = 0xEFFFFFFD

// Results of CheckNamespace.
var (
	ErrNoDevices = errors.New("the kernel sends no device events to this network namespace, because another user namespace owns it: run in the host's network namespace")
	ErrNoNetdevs = errors.New("the kernel sends events of network devices only to their own network namespace, and this is not the host's: run in the host's network namespace")
)

// CheckNamespace returns which events do not reach the calling thread's network
// namespace; nil also if unknown.
func CheckNamespace() error {
	first, err := isOwnedByInitialUserNamespace()
	switch {
	case err != nil:
		return fmt.Errorf("find the owner of the network namespace: %w", err)
	case !first:
		return ErrNoDevices
	case !isInitialNetworkNamespace():
		return ErrNoNetdevs
	default:
		return nil
	}
}

// isOwnedByInitialUserNamespace reports whether the initial user namespace owns
// the network namespace. EPERM means that the owner is neither ours nor a child
// of ours, so it is the initial one.
func isOwnedByInitialUserNamespace() (bool, error) {
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false, err
	}
	defer func() { _ = ns.Close() }()
	owner, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_USERNS)
	if errors.Is(err, unix.EPERM) {
		return true, nil
	}
	if err != nil {
		return false, os.NewSyscallError("ioctl NS_GET_USERNS", err)
	}
	defer func() { _ = unix.Close(owner) }()
	var stat unix.Stat_t
	if err := unix.Fstat(owner, &stat); err != nil {
		return false, os.NewSyscallError("fstat", err)
	}
	return stat.Ino == initialUserNamespace, nil
}

// isInitialNetworkNamespace reports whether this is the initial network
// namespace: only there some settings of the network exist.
func isInitialNetworkNamespace() bool {
	const settings = "/proc/sys/net/core/"
	_, some := os.Stat(settings + "somaxconn")
	_, first := os.Stat(settings + "dev_weight")
	return first == nil || some != nil
}
