package watchtest

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// startWithoutInotify starts the host where no inotify instance is to be had:
// in a thread of another effective user, whose instances are all taken. The
// kernel counts them by that user, and each thread has its own; nobody else on
// the machine is disturbed.
func (s *Stage) startWithoutInotify() error {
	h := s.New()
	started := make(chan error)
	var setUp error
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its odd user
		var taken []int
		if setUp = becomeAnother(54321); setUp == nil {
			taken, setUp = takeAll()
		}
		started <- h.Start(s.Ctx)
		for _, fd := range taken {
			_ = unix.Close(fd)
		}
	}()
	err := <-started
	check(setUp)
	return err
}

// takeAll takes every inotify instance that this thread's user may have.
func takeAll() (taken []int, err error) {
	for {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if errors.Is(err, unix.EMFILE) {
			return taken, nil
		}
		if err != nil {
			return taken, err
		}
		taken = append(taken, fd)
	}
}

// becomeAnother gives this thread another effective user, and root's
// capabilities back, so that it can do all that it could.
func becomeAnother(uid int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
		return errno
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return err
	}
	for i := range caps {
		caps[i].Effective = caps[i].Permitted
	}
	return unix.Capset(&header, &caps[0])
}

// SameUser is for a Host whose Start has another goroutine open its inotify
// instance: called there, become gives that goroutine's thread the user of the
// one that called SameUser.
func SameUser() (become func() error) {
	uid := unix.Geteuid()
	return func() error {
		if uid == unix.Geteuid() {
			return nil
		}
		runtime.LockOSThread() // and never unlocked
		return becomeAnother(uid)
	}
}
