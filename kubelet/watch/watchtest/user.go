package watchtest

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// startWithoutInotify starts the host in a thread with another effective user,
// whose inotify instances are all in use. The kernel counts per user, so other
// processes are not affected.
func (s *Stage) startWithoutInotify() error {
	h := s.New()
	started := make(chan error)
	var setUp error
	go func() {
		runtime.LockOSThread() // never unlocked: the thread exits
		var taken []int
		if setUp = setEffectiveUser(54321); setUp == nil {
			taken, setUp = exhaustInotify()
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

func exhaustInotify() (taken []int, err error) {
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

// setEffectiveUser keeps root's capabilities.
func setEffectiveUser(uid int) error {
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

// SameUser is for a Host whose Start opens inotify in another goroutine. become
// gives that goroutine's thread the caller's user.
func SameUser() (become func() error) {
	uid := unix.Geteuid()
	return func() error {
		if uid == unix.Geteuid() {
			return nil
		}
		runtime.LockOSThread() // never unlocked
		return setEffectiveUser(uid)
	}
}
