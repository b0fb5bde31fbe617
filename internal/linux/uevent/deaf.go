package uevent

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// firstUser is the inode of the first user namespace of every Linux
// (PROC_USER_INIT_INO).
const firstUser = 0xEFFFFFFD

// What Deaf returns.
var (
	ErrNoDevices = errors.New("the kernel tells this network namespace of no devices, because it belongs to a user namespace of its own: run in the host's network namespace")
	ErrNoNetdevs = errors.New("this is not the host's network namespace, and the kernel tells of a network device only where it is: run in the host's network namespace")
)

// Deaf tells which events the calling thread's network namespace does not get;
// nil is that it gets all, or that nobody can tell.
func Deaf() error {
	first, err := ofFirstUser()
	switch {
	case err != nil:
		return fmt.Errorf("see who owns the network namespace: %w", err)
	case !first:
		return ErrNoDevices
	case !isFirstNetwork():
		return ErrNoNetdevs
	default:
		return nil
	}
}

// ofFirstUser tells whether the network namespace belongs to the first user
// namespace. One that belongs to another than ours or one below does.
func ofFirstUser() (bool, error) {
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
	return stat.Ino == firstUser, nil
}

// isFirstNetwork: some settings of the network are the whole machine's, and
// only its first namespace has them.
func isFirstNetwork() bool {
	const settings = "/proc/sys/net/core/"
	_, some := os.Stat(settings + "somaxconn")
	_, first := os.Stat(settings + "dev_weight")
	return first == nil || some != nil
}
